"""Plain answers to many prompts: a token of each a pass, their caches in one batch.

What all prompts begin with is read once. Does not know files, nor drafts.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from dflash_mlx.speculation.acceptance import Match, not_numbers
from dflash_mlx.target.caches.batch import Batch
from dflash_mlx.target.caches.target_cache import TargetCache
from dflash_mlx.target.packed import SequenceRows
from dflash_mlx.target.target import Target
from dflash_mlx.types import SamplingParams

from .asked import Answered, Asked
from .streams import Task

CHUNK = 2048  # tokens of prompts a pass
TOGETHER = 16  # prompts that are read together: their own caches are only needed until then
REFILL = 8  # prompts are read when this share of a batch is free: few rows use a pass badly


@dataclass(slots=True)
class Text:
    """A prompt's answer so far, and the taps [S, K * Ht] of what was read, as bfloat16's bits."""

    asked: Asked
    rule: Match
    taps: list[np.ndarray]
    tokens: list[int] = field(default_factory=list)

    def answered(self) -> Answered:
        """The whole answer; its taps are evaluated."""
        rows = np.concatenate(self.taps)
        taps = mx.array(rows).view(mx.bfloat16) if rows.shape[1] else None
        mx.eval([] if taps is None else taps)
        return Answered(self.asked.key, tuple(self.tokens), taps)


class Desk:
    """The answers that are written at one time."""

    def __init__(self, target: Target, prompts: Sequence[Asked], temperature: float, places: int):
        """`prompts`: all that will come."""
        self._target, self._temperature = target, temperature
        # The last token of each prompt is left to read: the answer's first comes from there.
        self._shared = common([asked.tokens[:-1] for asked in prompts])
        self._begun, self._taps = target.make_cache(), list[np.ndarray]()
        self._batch = Batch(places, len(self._begun.layers))
        self._texts: list[Text | None] = [None] * places

    @property
    def places(self) -> int:
        """How many texts there is room for."""
        return len(self._texts)

    @property
    def free(self) -> int:
        """Places without a text."""
        return sum(text is None for text in self._texts)

    def read_shared(self) -> Task[None]:
        """Read what all prompts begin with; comes first."""
        _, (self._taps,) = yield from self._read([self._begun], [self._shared])

    def begin(self, asked: Sequence[Asked]) -> Task[list[Answered]]:
        """Read prompts, at most as many as places are free: what ends with the first token."""
        caches = [self._begun.fork() for _ in asked]
        rests = [each.tokens[len(self._shared) :] for each in asked]
        logits, taps = yield from self._read(caches, rests)
        texts: list[Text | None] = []
        for each, rows in zip(asked, taps, strict=True):
            params = SamplingParams(temperature=self._temperature, seed=each.seed)
            rule = Match(params, self._target.vocab_size, self._target.kernels)
            texts.append(Text(each, rule, [*self._taps, *rows]))
        places = [n for n, text in enumerate(self._texts) if text is None]
        yield from self._add(texts, mx.concatenate(logits))
        ended = list[Answered]()
        for place, text, cache in zip(places, texts, caches, strict=False):
            assert text is not None
            if self._ended(text):
                ended.append(text.answered())
                continue
            self._texts[place] = text
            self._batch.put(place, cache)
        yield self._batch.state
        return ended

    def step(self) -> Task[list[Answered]]:
        """A token more for each: what ends with it."""
        newest = [0 if text is None else text.tokens[-1] for text in self._texts]
        logits, taps = self._target.read_batch(mx.array(newest), self._batch)
        bits = taps.astype(mx.bfloat16).view(mx.uint16)
        yield from self._add(self._texts, logits, bits)
        ended = list[Answered]()
        for place, (text, row) in enumerate(zip(self._texts, np.array(bits), strict=True)):
            if text is None:
                continue
            text.taps.append(row[None])
            if self._ended(text):
                self._texts[place] = None
                self._batch.drop(place)
                ended.append(text.answered())
        return ended

    def narrow(self) -> None:
        """Give up the places without a text, if they are half."""
        if 2 * self.free >= self.places:
            kept = [place for place, text in enumerate(self._texts) if text is not None]
            self._texts = [self._texts[place] for place in kept]
            self._batch.keep(kept)

    def _read(
        self, caches: Sequence[TargetCache], texts: Sequence[Sequence[int]]
    ) -> Task[tuple[list[mx.array], list[list[np.ndarray]]]]:
        """The logits [1, V] after each text, and the taps of its parts."""
        logits, taps = [mx.zeros((1, 0))] * len(texts), [list[np.ndarray]() for _ in texts]
        rests = list(texts)
        while left := [n for n, rest in enumerate(rests) if rest]:
            most = max(1, CHUNK // len(left))
            parts = [
                SequenceRows(caches[n], mx.array([*rests[n][:most]]), tape=False, last=True)
                for n in left
            ]
            bits = list[mx.array]()
            for n, found in zip(left, self._target.read(parts), strict=True):
                logits[n], rests[n] = found.logits, rests[n][most:]
                bits.append(found.taps.squeeze(0).astype(mx.bfloat16).view(mx.uint16))
            yield logits, bits, [caches[n].state for n in left]
            for n, rows in zip(left, bits, strict=True):
                taps[n].append(np.array(rows))
        return logits, taps

    def _add(self, texts: Sequence[Text | None], logits: mx.array, *more: mx.array) -> Task[None]:
        """Add the token that each row of logits [N, V] gives; DFlashError if they are NaN.

        `more` is evaluated with it.
        """
        live = [(n, text) for n, text in enumerate(texts) if text is not None]
        if self._temperature == 0:
            chosen = mx.argmax(logits, axis=-1)
        else:
            each = [text.rule.choose(logits[n : n + 1], [len(text.tokens)]) for n, text in live]
            chosen = mx.zeros(len(texts), mx.int32)
            chosen[mx.array([n for n, _ in live])] = mx.concatenate(each).astype(mx.int32)
        broken = mx.isnan(mx.max(logits, axis=-1))
        yield chosen, broken, more
        found, faults = np.array(chosen), np.array(broken)
        for n, text in live:
            if faults[n]:
                raise not_numbers()
            text.tokens.append(int(found[n]))

    def _ended(self, text: Text) -> bool:
        stopped = text.tokens[-1] in self._target.eos_ids
        return stopped or len(text.tokens) == text.asked.room


def plain_answers(
    target: Target,
    asked: Sequence[Asked],
    waiting: deque[Asked],
    temperature: float,
    count: int,
    ready: deque[Answered],
) -> Task[None]:
    """Answer what waits, `count` at once, into `ready`; `asked`: all prompts.

    DFlashError where the target's logits are not numbers.
    """
    desk = Desk(target, asked, temperature, count)
    yield from desk.read_shared()
    while waiting or desk.free < desk.places:
        if waiting and desk.free >= max(1, count // REFILL):
            many = min(desk.free, len(waiting), TOGETHER)
            ready += yield from desk.begin([waiting.popleft() for _ in range(many)])
            continue
        if not waiting:
            desk.narrow()
        ready += yield from desk.step()


def common(texts: Sequence[Sequence[int]]) -> list[int]:
    """What all texts begin with."""
    columns = [set(column) for column in zip(*texts, strict=False)]
    length = next((n for n, column in enumerate(columns) if len(column) > 1), len(columns))
    return list(texts[0][:length])
