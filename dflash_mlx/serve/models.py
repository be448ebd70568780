"""The models of a server: which it offers, which are loaded, and which make room for others.

A model is loaded by the first request that names it. Requests for it wait meanwhile; answers of
other models go on. What does not fit beside it is unloaded, the least recently used first, and
so is a model that nobody has asked for a while.
"""

import asyncio
import difflib
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.engine.prefix_cache.prefix_cache import SHARE
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.programs import ending, held_bytes, holders, named
from dflash_mlx.models.memory import CACHES_SHARE, working_set
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair, weight_bytes

from .access_log import AccessLog
from .keep_alive import KEEP_ALIVE
from .protocol import LATEST, Problem, Settings, problem_of
from .runner import Admission, Metrics, PromptThreads, Runner

TAKE_SECONDS = 0.1  # in which a request takes the model that was loaded for it


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be served. nbytes: memory of the pair and of a short context, as estimated.

    load: loads it, in any thread but MLX's, and returns it with the defaults of requests for it;
    raises DFlashError. folder: the target's, if it is downloaded.
    """

    name: str
    nbytes: int
    load: Callable[[], tuple[Pair, GenerationOptions]]
    context: int | None = None
    draft: str | None = None
    downloaded: bool = True
    folder: Path | None = None


@dataclass(eq=False, slots=True)
class Served:
    """A loaded model. nbytes: of its weights. users: requests that are being answered.

    stays: it is never unloaded. keep_alive: seconds that it stays loaded after its last answer.
    unloads_at: when they end, by `time.monotonic`, if no request comes; expiry: unloads it then.
    """

    name: str
    pair: Pair
    runner: Runner
    stays: bool
    keep_alive: float
    nbytes: int
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    unloads_at: float | None = None
    expiry: asyncio.Task[None] | None = None

    @property
    def unloads_in(self) -> float | None:
        return None if self.unloads_at is None else max(0.0, self.unloads_at - time.monotonic())

    @property
    def can_go(self) -> bool:
        return not self.users and not self.stays


@dataclass(eq=False)
class Models:
    """Loads, counts and unloads the models of a server, in one event loop.

    offers: lists what can be loaded, anew at each call. cache_ram: bytes of all prefix caches; None
    is a quarter of the memory beside the weights. One model is loaded at a time. The answers of all
    models share the places and the memory of one queue.
    """

    settings: Settings
    metrics: Metrics
    log: AccessLog
    offers: Callable[[], Sequence[Offer]] = tuple
    keep_alive: float = KEEP_ALIVE
    cache_ram: int | None = None
    admission: Admission = field(init=False)
    prompt_threads: PromptThreads = field(default_factory=PromptThreads)
    _loaded: dict[str, Served] = field(default_factory=dict)
    _loads: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.admission = Admission(self.settings.max_sequences, self.settings.limits.queue)
        self.metrics.watch(lambda: [one.pair.engine for one in self.loaded], self.admission)

    @property
    def loaded(self) -> list[Served]:
        """The loaded models, the least recently used first."""
        return sorted(self._loaded.values(), key=lambda served: served.used_at)

    def named(self, name: str) -> Served | None:
        return self._loaded.get(name)

    def stays(self, name: str) -> bool:
        return name in self._loaded and self._loaded[name].stays

    def add(
        self, name: str, pair: Pair, options: GenerationOptions, *, stays: bool = False
    ) -> Served:
        """Serve a loaded pair. `share_memory` must follow."""
        settings = replace(self.settings, options=options)
        runner = Runner(name, pair, settings, self.metrics, self.admission, self.prompt_threads)
        keep_alive = inf if stays else self.keep_alive
        served = Served(name, pair, runner, stays, keep_alive, weight_bytes(pair))
        self._loaded[name] = served
        return served

    def share_memory(self) -> None:
        """Share the memory beside the weights: prefix caches, then answers. In MLX's thread."""
        engines = [served.pair.engine for served in self.loaded]
        own = sum(served.nbytes for served in self.loaded)
        beside = max(0, working_set() - held_bytes() - own)
        if not all(served.stays for served in self.loaded):
            for_prefixes = int(SHARE * beside) if self.cache_ram is None else self.cache_ram
            for engine in engines:
                engine.prefix_cache.resize(for_prefixes // len(engines))
        prefixes = sum(engine.prefix_cache.limit for engine in engines)
        self.admission.max_bytes = max(0, int(CACHES_SHARE * beside) - prefixes)
        for engine in engines:
            engine.fit_context(self.admission.max_bytes)

    def find(self, name: str | None) -> str:
        """The whole name of the model that a request names; without a name the first one's.

        The end of a name is enough, from a slash on, if only one model is meant: "b/c" and "c" are
        ends of "a/b/c". Raises Problem 404 for a name that no model has.
        """
        first = self.settings.names[0]
        if name is None or name in self.settings.names:
            return first
        offered = (offer.name for offer in self.offers())
        names = list(dict.fromkeys((*self.settings.names, *self._loaded, *offered)))
        short = name.removesuffix(LATEST)
        ends = [each for each in names if short and each.endswith(f"/{short}")]
        for found in (name, short, *(ends if len(ends) == 1 else ())):
            if found in names:
                return first if found in self.settings.names else found
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        if ends:
            message = f"the model '{name:.100}' may be {listed(ends)}: give a whole name."
        elif len(names) == 1 or not near:
            message = (
                f"the model '{name:.100}' is not served here: this is '{first}'. "
                f"(Start the server with --alias '{name:.100}' to use this name.)"
            )
        else:
            message = f"the model '{name:.100}' is not served here. (The nearest: {listed(near)}.)"
        raise Problem(404, message, param="model", code="model_not_found")

    def describe(self, name: str) -> dict[str, Any]:
        whole = self.find(name)
        served = self._loaded.get(whole)
        if served is not None:
            return {
                "max_model_len": served.runner.context,
                "draft": served.pair.draft_name,
                "state": "loaded",
                "size": served.nbytes,
                "running": served.users,
                "unloads_in": served.unloads_in,
            }
        offer = next(offer for offer in self.offers() if offer.name == whole)
        state = "not-loaded" if offer.downloaded else "not-downloaded"
        return {
            "max_model_len": offer.context,
            "draft": offer.draft,
            "state": "loading" if whole in self._loads else state,
            "size": offer.nbytes,
        }

    async def acquire(self, name: str | None) -> Served:
        """The model of a request, loaded now if it is not. `release` it after the answer.

        Raises Problem 404 for an unknown name, 503 for a model that does not fit the memory, 500
        for one that is damaged.
        """
        name = self.find(name)
        while (served := self._loaded.get(name)) is None:
            if name not in self._loads:
                self._loads[name] = load = asyncio.create_task(self._load(name))
                # asyncio would report an error that no client has waited for.
                load.add_done_callback(lambda load: load.cancelled() or load.exception())
            await asyncio.shield(self._loads[name])  # the load goes on if the client leaves
        served.users += 1
        self._used(served)
        return served

    def release(self, served: Served, keep_alive: float | None = None) -> None:
        """Give a model back after an answer; `keep_alive`: None is the server's."""
        served.users -= 1
        if not served.stays:
            served.keep_alive = self.keep_alive if keep_alive is None else keep_alive
        self._used(served)
        self._released.set()

    async def stop(self, name: str | None) -> bool:
        name = self.find(name)
        if name not in self._loaded:
            return False
        async with self._one_at_a_time:
            while name in self._loaded and self._loaded[name].users:
                await self._wait()
            if name in self._loaded:  # it may have had to make room meanwhile
                await self._unload(name)
        return True

    async def _load(self, name: str) -> None:
        try:
            async with self._one_at_a_time:
                offer = next((offer for offer in self.offers() if offer.name == name), None)
                if offer is None:
                    raise Problem(404, f"the model '{name:.100}' is gone.", param="model")
                await self._make_room(offer)
                started = time.perf_counter()
                try:
                    pair, options = await asyncio.to_thread(offer.load)
                except DFlashError as error:
                    raise problem_of(error, bad_request=False) from error
                served = self.add(name, pair, options)
                await in_mlx_thread(self.share_memory)
                self.log.write_model(name, "loaded", time.perf_counter() - started)
                self._used(served)
        finally:
            del self._loads[name]

    async def _make_room(self, offer: Offer) -> None:
        """Unload models until another one fits; waits for running answers, if it must."""
        others = holders()
        held = sum(other.nbytes for other in others)
        limit = working_set() - held
        staying = sum(served.nbytes for served in self.loaded if served.stays)
        if staying + offer.nbytes > limit:
            beside, hint = "", "Ask for a smaller one"
            if staying + offer.nbytes <= limit + held:
                beside, hint = f" beside {named(others)}", f"{hint}, or {ending(others)}"
            raise Problem(
                503,
                f"the model '{offer.name}' needs {offer.nbytes / 1e9:.1f} GB of memory, and "
                f"{max(0, limit - staying) / 1e9:.1f} GB can be freed{beside}. ({hint}.)",
                code="model_too_large",
            )

        def fits() -> bool:
            held = sum(served.nbytes for served in self.loaded) + self.admission.reserved_bytes
            return held + offer.nbytes <= limit

        while not fits():
            idle = next((served.name for served in self.loaded if served.can_go), None)
            if idle is None:
                await self._wait()
            else:
                await self._unload(idle)

    async def _unload(self, name: str) -> None:
        """Unload a model, which no caller may hold: then its memory would not become free."""
        served = self._loaded.pop(name)
        if served.expiry not in (None, asyncio.current_task()):
            served.expiry.cancel()
        started = time.perf_counter()
        disk = served.pair.engine.prefix_cache.disk
        del served
        if disk is not None:
            await asyncio.to_thread(disk.wait)
        del disk
        await in_mlx_thread(free_memory)
        self.log.write_model(name, "unloaded", time.perf_counter() - started)
        if self._loaded:
            await in_mlx_thread(self.share_memory)

    def _used(self, served: Served) -> None:
        """Note the use of a model, and begin the time that it stays loaded."""
        served.used_at = time.monotonic()
        served.unloads_at = None
        if served.expiry is not None:
            served.expiry.cancel()
        if served.can_go and served.keep_alive < inf:
            served.unloads_at = served.used_at + served.keep_alive
            served.expiry = asyncio.create_task(self._expire(served.name, served.keep_alive))

    async def _expire(self, name: str, seconds: float) -> None:
        """Unload a model after so many seconds; its use and its end cancel this."""
        await asyncio.sleep(max(seconds, TAKE_SECONDS))
        async with self._one_at_a_time:
            await self._unload(name)

    async def _wait(self) -> None:
        self._released.clear()
        await self._released.wait()


def listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def free_memory() -> None:
    """Free what nothing refers to any more. In MLX's thread."""
    gc.collect()
    mx.clear_cache()


async def in_mlx_thread(function: Callable[[], None]) -> None:
    """Run a function in MLX's thread while the event loop goes on."""
    await asyncio.to_thread(mlx_thread().call, function)
