"""From raw logits to the distribution that is sampled, row by row of a block.

Penalties and filters are mlx-lm's own functions in mlx-lm's own order, so plain decoding and DFlash
sample one and the same distribution. Knows the tokens before each row, not where drafts come from.
"""

import secrets
from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from dflash_mlx.types import SamplingParams

HISTORY = 20  # how many tokens mlx-lm's penalties look back


class Draws:
    """Random keys of one answer, in a fixed order from a seed; no global state."""

    def __init__(self, seed: int | None):
        self._key = mx.random.key(secrets.randbits(63) if seed is None else seed)

    def next(self) -> mx.array:
        """A fresh key."""
        self._key, key = mx.random.split(self._key)
        return key


def words(key: mx.array, count: int) -> mx.array:
    """Uniform random words of a key, [count] uint32: a key is two of them."""
    return mx.random.split(key, count)[:, 0]


class Shaper:
    """Turns logits into scaled log-probabilities: `softmax` of its result is what is sampled."""

    def __init__(self, params: SamplingParams, vocab_size: int):
        self.params = params
        self._top_k = params.top_k if params.top_k < vocab_size else 0
        self._processors = penalties(params)

    def penalise(self, logits: mx.array, history: list[int], drafts: mx.array) -> mx.array:
        """Penalise rows [S, V]; row j follows the history and the first j drafts [>= S - 1]."""
        if not self._processors:
            return logits
        tokens = mx.concatenate([recent(history), drafts.astype(mx.int32)])
        known = tokens.size - drafts.size
        return self._each(logits, [tokens[: known + j] for j in range(logits.shape[0])])

    def penalise_paths(
        self, logits: mx.array, history: list[int], paths: Sequence[Sequence[int]]
    ) -> mx.array:
        """Penalise rows [R, V]; each follows the history and its own path."""
        if not self._processors:
            return logits
        return self._each(logits, [recent([*history, *path]) for path in paths])

    def _each(self, logits: mx.array, before: list[mx.array]) -> mx.array:
        """Penalise rows [S, V] by the tokens before each."""
        rows = []
        for j, tokens in enumerate(before):
            row = logits[j : j + 1]
            for process in self._processors:
                row = process(tokens, row)
            rows.append(row)
        return mx.concatenate(rows)

    def shape(self, logits: mx.array) -> mx.array:
        """Filter and scale penalised rows [S, V] in float32; filtered tokens become -inf."""
        params = self.params
        logits = logits.astype(mx.float32)
        rows = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if params.top_p < 1:
            rows = apply_top_p(rows, params.top_p)
        if params.min_p > 0:
            rows = apply_min_p(rows, params.min_p)
        if self._top_k:
            rows = apply_top_k(rows, self._top_k)
        return rows * (1 / params.temperature)


def recent(tokens: list[int]) -> mx.array:
    """The tokens that penalties may look at."""
    return mx.array(tokens[-HISTORY:], dtype=mx.int32)


def penalties(params: SamplingParams) -> list:
    """mlx-lm's processors for these parameters; an empty list when all penalties are off."""
    repetition = params.repetition_penalty
    return make_logits_processors(
        repetition_penalty=None if repetition == 1 else repetition,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )
