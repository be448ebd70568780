"""The target at work on many prompts at once, by several threads; taps are kept on the way.

What the passes give besides logits is what the drafter learns from, so no second pass over the
answers is needed. Plain answers share one batch of caches; with a drafter, which drafts where that
pays, and where caches are not plain rows, there are packed rounds of the engine. Does not know
files.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event

import mlx.core as mx

from dflash_mlx.engine import Engine
from dflash_mlx.errors import DFlashError
from dflash_mlx.request import Request
from dflash_mlx.sequence import Sequence
from dflash_mlx.speculation.source import DraftSource
from dflash_mlx.target.caches.batch import fits_batch
from dflash_mlx.target.target import Target
from dflash_mlx.types import SamplingParams

from .asked import Answered, Asked
from .plain_answers import plain_answers
from .workers import worker_count


class Recorded(Sequence):
    """A sequence that keeps the taps of the tokens it commits."""

    def __init__(self, target: Target, drafter: DraftSource | None):
        super().__init__(target, drafter, shares=False)
        self._taps: list[mx.array] = []

    def absorb(self, tokens: tuple[int, ...], taps: mx.array) -> None:
        """Count tokens that the target's cache holds, and keep their taps."""
        super().absorb(tokens, taps)
        if taps.shape[-1]:
            # A copy: a view would keep the rows of all other sequences in memory.
            rows = mx.contiguous(taps.squeeze(0).astype(mx.bfloat16) + 0)
            mx.async_eval(rows)
            self._taps.append(rows)

    def taps(self) -> mx.array | None:
        """[S, K * Ht] of all tokens read; they are forgotten here."""
        parts, self._taps = self._taps, []
        return mx.concatenate(parts) if parts else None


def answer(
    target: Target, drafter: DraftSource | None, asked: list[Asked], temperature: float, batch: int
) -> Generator[Answered]:
    """Yield answers in the order of completion, `batch` at work at once.

    When the generator is closed, its threads end at their next round. Raises DFlashError where the
    target's logits are not numbers.
    """
    if not asked:
        return
    # Drafts are weighed by costs that are measured, which a second thread would disturb.
    count = worker_count() if drafter is None else 1
    waiting, ready = deque(asked), SimpleQueue[Answered | None]()
    if count == 1:
        yield from begun(target, drafter, asked, waiting, temperature, batch, lambda: False)
        return
    stop = Event()
    share = -(-batch // count)

    def work() -> None:
        try:
            # Made here: what it computes lazily belongs to this thread.
            ours = target.replica()
            found = begun(ours, drafter, asked, waiting, temperature, share, stop.is_set)
            for item in found:
                ready.put(item)
        except BaseException:
            stop.set()  # the others need not go on to their ends
            raise
        finally:
            mx.clear_streams()  # MLX aborts the process if a thread's streams outlive it
            ready.put(None)

    with ThreadPoolExecutor(count) as pool:
        parts = [pool.submit(work) for _ in range(count)]
        try:
            for _ in parts:
                yield from iter(ready.get, None)
        finally:
            stop.set()
        for part in parts:
            part.result()


def begun(
    target: Target,
    drafter: DraftSource | None,
    asked: list[Asked],
    waiting: deque[Asked],
    temperature: float,
    batch: int,
    stopped: Callable[[], bool],
) -> Generator[Answered]:
    """Answers of one thread to what waits: in one batch where the caches allow it."""
    if drafter is None and not target.kernels.exact and fits_batch(target.make_cache()):
        return plain_answers(target, asked, waiting, temperature, min(batch, len(asked)), stopped)
    return rounds(target, drafter, waiting, temperature, batch, stopped)


def rounds(
    target: Target,
    drafter: DraftSource | None,
    waiting: deque[Asked],
    temperature: float,
    batch: int,
    stopped: Callable[[], bool],
) -> Generator[Answered]:
    """Rounds of an engine until nothing waits or `stopped` returns true; yields what is found."""
    engine = Engine(target, drafter)
    running: dict[Recorded, tuple[Asked, list[int]]] = {}
    while not stopped():
        while waiting and len(running) < batch:
            try:
                item = waiting.popleft()
            except IndexError:  # another thread was faster
                break
            sequence = Recorded(target, drafter)
            request = Request(
                item.tokens,
                SamplingParams(temperature=temperature, seed=item.seed),
                max_tokens=item.room,
                stop_ids=target.eos_ids,
                mode="baseline" if drafter is None else "auto",
            )
            engine.begin(sequence, request)
            running[sequence] = item, []
        if not running:
            return
        blocks = engine.step(list(running))
        for sequence, block in zip(list(running), blocks, strict=True):
            if isinstance(block, DFlashError):
                raise block
            item, tokens = running[sequence]
            tokens += block.tokens
            if block.finish_reason:
                del running[sequence]
                taps = sequence.taps()
                mx.eval([] if taps is None else taps)
                yield Answered(item.key, tuple(tokens), taps)
