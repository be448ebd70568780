"""Attention of a target's layers by this package's operation, wherever that takes it.

mlx-lm's attention modules call `scaled_dot_product_attention` by that name. Those of one model
instance get a class of their own, which runs their code with that name leading here; mlx-lm's
classes and modules stay as they are. Knows caches and masks, no family; what it does not know is
left to stock.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache, RotatingKVCache

from dflash_mlx.cpu.modules import MaskedCache
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.verify_attention import OP, ROWS, Rows, Scores

from .tree_pass import Branch

STOCK = "_dflash_stock"
NAME = scaled_dot_product_attention.__name__
KINDS = (KVCache, MaskedCache, RotatingKVCache)


@dataclass(frozen=True, slots=True)
class Held:
    """What one cache holds in a pass: keys and values [1, Hkv, capacity, D] by position.

    Row 0 has position `start`; `context` rows were there before the pass, then come its own. A row
    sees the `window` newest positions, 0 is all, which is what `mask` says.
    """

    keys: mx.array
    values: mx.array
    start: int
    context: int
    window: int
    mask: Any


class Pass:
    """One pass over `count` tokens: the windows of its masks, what its caches hold, its rows."""

    def __init__(self, rows: Rows):
        self._rows: dict[tuple[int, int], Rows] = {(0, 0): rows}
        self._windows: dict[int, tuple[mx.array, int]] = {}
        self._lent: dict[int, tuple[mx.array, Held]] = {}

    def noting(self, cache: Any) -> Callable[..., Any]:
        """A cache's `make_mask`, which remembers the windows of the masks that it makes."""
        make_mask, size = cache.make_mask, getattr(cache, "max_size", 0)

        def noted(N: int, return_array: bool = False, window_size: int | None = None) -> Any:
            mask = make_mask(N, return_array=return_array, window_size=window_size)
            if isinstance(mask, mx.array):
                self._windows[id(mask)] = mask, window_size or size
            return mask

        return noted

    def held(self, keys: mx.array, cache: Any, mask: Any) -> Held | None:
        """What a layer reads that was given these keys; None if that is not known.

        Some layers have no cache, and read what an earlier one with the same mask has read.
        """
        _, lent = self._lent.get(id(keys), (None, None))
        if cache is None or lent is not None:
            return lent if lent is not None and lent.mask is mask else None
        window = 0
        if isinstance(mask, mx.array):
            if id(mask) not in self._windows:
                return None
            _, window = self._windows[id(mask)]
        if (found := by_position(cache, self.count, window, mask)) is not None:
            self._lent[id(keys)] = keys, found
        return found

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._rows[0, 0].paths)

    def rows(self, held: Held) -> Rows:
        """The rows of the pass behind what was held."""
        place = held.context, held.start
        if place not in self._rows:
            self._rows[place] = replace(self._rows[0, 0], context=place[0], start=place[1])
        return self._rows[place]


def by_position(cache: Any, count: int, window: int, mask: Any) -> Held | None:
    """What a cache holds that `count` rows were just added to; None for other kinds of caches."""
    if type(cache) not in KINDS:
        return None
    keys, values = cache.keys, cache.values
    if type(cache) is not RotatingKVCache:
        return Held(keys, values, 0, cache.offset - count, window, mask)
    if cache.keep:
        return None
    window = window or int(cache.max_size)
    if cache._idx == cache.offset:  # never turned; rows that are not used yet may follow
        return Held(keys, values, 0, cache.offset - count, window, mask)
    keys, values = cache._temporal_order(keys), cache._temporal_order(values)
    rows = keys.shape[2]
    return Held(keys, values, cache.offset - rows, rows - count, window, mask)


class Attention:
    """What the attention modules of one model instance call, and the pass that runs now."""

    def __init__(self, kernels: Callable[[], Kernels]):
        self._kernels = kernels
        self._pass: Pass | None = None
        self._chains: dict[int, Rows] = {}
        self._classes: dict[type, type] = {}

    @contextmanager
    def over(
        self, count: int, caches: Iterable[Any] | None, branch: Branch | None
    ) -> Iterator[None]:
        """The pass in this context reads `count` tokens, a chain or a tree, with these caches.

        None for a pass that has none. DFlashError for more rows than an exact pass can have.
        """
        if caches is None or not self._wanted(count, branch):
            yield
            return
        now, made = Pass(self._shape(count, branch)), []
        try:
            for cache in caches:
                if type(cache) in KINDS:
                    made.append((cache, vars(cache).get("make_mask")))
                    cache.make_mask = now.noting(cache)  # this object's, not its class's
            self._pass = now
            yield
        finally:
            self._pass = None
            for cache, before in made:
                vars(cache).pop("make_mask", None)
                if before is not None:
                    cache.make_mask = before

    def _wanted(self, count: int, branch: Branch | None) -> bool:
        """Not for a prefill, nor for a plain step, unless it has to have the bits of a verify."""
        kernels = self._kernels()
        if kernels.stock or (count == 1 and not kernels.exact and not kernels.own):
            return False
        if count <= ROWS:
            return True
        if branch is not None and kernels.exact and kernels.launcher is not None:
            raise DFlashError(
                f"exact mode verifies at most {ROWS} rows at once, not {count}.",
                hint=f"give a tree budget of at most {ROWS - 1}",
            )
        return branch is not None

    def _shape(self, count: int, branch: Branch | None) -> Rows:
        if branch is not None:
            return Rows.of(0, branch.parents)
        if count not in self._chains:
            self._chains[count] = Rows.of(0, range(-1, count - 1))
        return self._chains[count]

    def own(self, module: nn.Module) -> None:
        """Let an attention module of ours run its code, in which mlx-lm's function is `attend`.

        The module gets a class of its own, whose base is its class, and keeps everything else.
        """
        kind = stock_class(module)
        if kind not in self._classes:
            call: Any = kind.__call__
            names = {**call.__globals__, NAME: self.attend}
            ours = FunctionType(
                call.__code__, names, call.__name__, call.__defaults__, call.__closure__
            )
            ours.__kwdefaults__ = call.__kwdefaults__
            self._classes[kind] = type(kind.__name__, (kind,), {"__call__": ours, STOCK: kind})
        module.__class__ = self._classes[kind]

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """As mlx-lm's function of that name: queries [1, Hq, T, D] -> [1, Hq, T, D].

        DFlashError in exact mode for a cache or mask that is not known.
        """
        now, kernels = self._pass, self._kernels()
        held = None if now is None or len(queries) > 1 else now.held(keys, cache, mask)
        if now is not None and held is not None:
            scores = Scores(scale, window=held.window, sinks=sinks)
            args = queries[0], held.keys[0], held.values[0], now.rows(held), scores
            if kernels.takes(OP, *args):
                return kernels(OP, *args)[None]
        if now is not None and kernels.exact:
            raise DFlashError(
                f"exact mode does not know how a layer uses its '{type(cache).__name__}'.",
                hint="leave exact mode off for this model",
            )
        return scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)


def stock_class(module: nn.Module) -> type:
    """mlx-lm's class of an attention module."""
    return getattr(type(module), STOCK, type(module))


def covered(module: nn.Module) -> bool:
    """Whether an attention module is of the kind whose inner function can be another.

    Latent attention is not: a part of its scores comes as a mask of numbers, and a single row takes
    another way through it than several.
    """
    call: Any = stock_class(module).__call__
    named = call.__globals__.get(NAME) is scaled_dot_product_attention
    return named and NAME in call.__code__.co_names and not hasattr(module, "kv_lora_rank")


def install(layers: Iterable[Any], attention: Attention) -> tuple[str, ...]:
    """Let one model's layers attend by `attention`; the classes that stay stock's."""
    stock: set[str] = set()
    for module in [layer.self_attn for layer in layers if hasattr(layer, "self_attn")]:
        if covered(module):
            attention.own(module)
        else:
            stock.add(type(module).__name__)
    return tuple(sorted(stock))
