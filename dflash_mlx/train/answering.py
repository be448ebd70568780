"""The target at work on many prompts at once; taps are kept on the way.

What the passes give besides logits is what the drafter learns from, so no second pass over the
answers is needed. Plain answers share one batch of caches; with a drafter, which drafts where that
pays, and where caches are not plain rows, there are packed rounds of the engine. Does not know
files.
"""

from collections import deque
from collections.abc import Generator

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
from .streams import Streams


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

    Raises DFlashError where the target's logits are not numbers.
    """
    if not asked:
        return
    if drafter is not None or target.kernels.exact or not fits_batch(target.make_cache()):
        yield from rounds(target, drafter, deque(asked), temperature, batch)
        return
    streams, waiting, ready = Streams(), deque(asked), deque[Answered]()
    share = -(-min(batch, len(asked)) // streams.count)
    desks = (
        plain_answers(target, asked, waiting, temperature, share, ready)
        for _ in range(streams.count)
    )
    for _ in streams.together(desks):
        while ready:
            yield ready.popleft()


def rounds(
    target: Target,
    drafter: DraftSource | None,
    waiting: deque[Asked],
    temperature: float,
    batch: int,
) -> Generator[Answered]:
    """Rounds of an engine until nothing waits; yields what is found."""
    engine = Engine(target, drafter)
    running: dict[Recorded, tuple[Asked, list[int]]] = {}
    while waiting or running:
        while waiting and len(running) < batch:
            item = waiting.popleft()
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
