"""Turns raw logits into the distribution to sample from, for each row of a pass.

Penalties and filters are those of mlx-lm in mlx-lm's own order, so plain decoding and DFlash sample
from the same distribution. A random key belongs to a position of the answer, not to a round: token
n is drawn with the n-th key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from dflash_mlx.options import SamplingParams
from dflash_mlx.types import TokenLogprob

GROUP = 64  # tokens that `top_ids` compares by their maximum before it sorts any


def top_ids(logits: mx.array, count: int) -> mx.array:
    """The ids [γ, count], ascending, of the largest logits [γ, V]; always with the argmax.

    Ties go to the smaller ids, as in MLX's `argpartition`. The `count` largest logits are in the
    `count` groups with the largest maxima, and only those groups are sorted: no sort is as wide as
    the vocabulary. A V that is small, or no multiple of GROUP, is sorted whole.
    """
    best = mx.argmax(logits, axis=-1, keepdims=True)
    if count == 1:
        return best
    costs = mx.put_along_axis(-logits, best, mx.array(-mx.inf), axis=-1)
    if logits.shape[-1] % GROUP or logits.shape[-1] < 4 * GROUP * count:
        return mx.sort(mx.argpartition(costs, count - 1, axis=-1)[:, :count], axis=-1)
    costs = costs.reshape(costs.shape[0], -1, GROUP)
    # Sorted, so that equal logits of several blocks keep the order of their ids.
    blocks = mx.sort(mx.argpartition(costs.min(axis=-1), count - 1, axis=-1)[:, :count], axis=-1)
    inside = mx.take_along_axis(costs, blocks[..., None], axis=1).reshape(costs.shape[0], -1)
    places = mx.argpartition(inside, count - 1, axis=-1)[:, :count]
    ids = mx.take_along_axis(blocks, places // GROUP, axis=1) * GROUP + places % GROUP
    return mx.sort(ids, axis=-1)


HISTORY = 20  # tokens that mlx-lm's penalties look back
KEYS = 64  # made at once


class Keys:
    """The random keys of one answer, in a fixed order from a seed; no global state.

    MLX's global generator gives the same keys after `mx.random.seed(seed)`, one per draw, so stock
    mlx-lm draws token n with the n-th key, too.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self._state = mx.random.key(seed)
        self._keys = mx.zeros((0, 2), dtype=mx.uint32)
        self._uniforms = mx.zeros((0,))

    def __getitem__(self, place: int) -> mx.array:
        """The key of token `place` of the answer, from 0."""
        self._make(place)
        return self._keys[place]

    def uniforms(self, places: Sequence[int]) -> mx.array:
        """The uniform numbers [S] in [0, 1) that `mx.random.categorical` draws tokens with."""
        self._make(max(places))
        first = places[0]
        count = len(places)
        if list(places) == list(range(first, first + count)):
            return self._uniforms[first : first + count]
        return self._uniforms[mx.array([*places])]

    def _make(self, place: int) -> None:
        while len(self._keys) <= place:
            made = []
            for _ in range(KEYS):
                self._state, key = mx.random.split(self._state)
                made.append(key)
            keys = mx.stack(made)
            uniforms = mx.vmap(lambda key: mx.random.uniform(shape=(), key=key))(keys)
            self._keys = mx.concatenate([self._keys, keys])
            self._uniforms = mx.concatenate([self._uniforms, uniforms])
            mx.async_eval(self._state, self._keys, self._uniforms)


def categorical(rows: mx.array, uniforms: mx.array) -> mx.array:
    """Tokens [S] drawn from log-probabilities [S, V] up to a constant, by uniform numbers [S].

    For each row this is the token that `mx.random.categorical` draws, by inverse CDF, from that row
    alone with the key of its number. For all rows at once it would use one key, and another method.
    """
    most = mx.max(rows, axis=-1, keepdims=True)
    weights = mx.where(mx.isinf(most), (rows == most).astype(rows.dtype), mx.exp(rows - most))
    below = mx.cumsum(weights, axis=-1, inclusive=False)
    places = uniforms * mx.sum(weights, axis=-1)
    return mx.sum(below <= places[:, None], axis=-1) - 1


def drawn(chances: mx.array, uniforms: mx.array) -> mx.array:
    """Tokens [S] drawn from probabilities [S, V] by uniform numbers [S]; inverse CDF.

    Never a token of probability 0, whatever the rounding of the sums.
    """
    sums = mx.cumsum(chances, axis=-1)
    places = uniforms[:, None] * sums[:, -1:]
    last = mx.sum(sums < sums[:, -1:], axis=-1)
    return mx.minimum(mx.sum(sums <= places, axis=-1), last)


class Shaper:
    """Turns logits into scaled log-probabilities: `softmax` of its result is what is sampled.

    kept_ids: tokens that XTC never leaves out.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, kept_ids: Sequence[int] = ()):
        self.params = params
        self._kept_ids = [*kept_ids]
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

    def draw(
        self, logits: mx.array, uniforms: mx.array, chances: mx.array | None = None
    ) -> mx.array:
        """Tokens [S] drawn from penalised rows [S, V], as stock mlx-lm draws each of them.

        chances: for XTC, a uniform number [S] for each row.
        """
        if logits.dtype == mx.float32 and not self.params.filtered:
            # The logsumexp below changes no draw, except by its rounding at 16 bits.
            return categorical(logits * (1 / self.params.temperature), uniforms)
        rows = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return categorical(self._filter(rows, chances).astype(mx.float32), uniforms)

    def shape(self, logits: mx.array) -> mx.array:
        """Filter and scale penalised rows [S, V] in float32; filtered tokens become -inf."""
        logits = logits.astype(mx.float32)
        if not self.params.filtered:  # what softmax gives does not depend on a row's sum
            return logits * (1 / self.params.temperature)
        return self._filter(logits - mx.logsumexp(logits, axis=-1, keepdims=True))

    def _filter(self, rows: mx.array, chances: mx.array | None = None) -> mx.array:
        """Filtered and scaled rows [S, V]; with XTC by `chances`, see `draw`.

        XTC changes which tokens are the top k, so then all is in mlx-lm's own order.
        """
        params = self.params
        if self._top_k and chances is None:
            return self._top(rows) * (1 / params.temperature)
        if params.top_p < 1:
            rows = apply_top_p(rows, params.top_p)
        if params.min_p > 0:
            rows = apply_min_p(rows, params.min_p)
        if chances is not None:
            excluded = exclude_top(rows, params.xtc_threshold, self._kept_ids)
            rows = mx.where(chances[:, None] > params.xtc_probability, rows, excluded)
            if self._top_k:
                rows = apply_top_k(rows, self._top_k)
        return rows * (1 / params.temperature)

    def _top(self, rows: mx.array) -> mx.array:
        """Rows [S, V] filtered by top-p, min-p and top-k, with `top_ids` as the widest sort.

        mlx-lm applies top-k last. Top-p and min-p drop all tokens below some value, so top-k can
        come first: the same tokens stay, also among equal ones. Only the row's mass, which top-p is
        a share of, is summed in another order than in mlx-lm. So a token can fall on the other side
        of top-p, if the mass above it equals that share up to rounding.
        """
        params = self.params
        ids = top_ids(rows, self._top_k)
        best = mx.take_along_axis(rows, ids, axis=-1)
        if params.top_p < 1:
            mass = mx.exp(rows.astype(mx.float32)).sum(axis=-1, keepdims=True)
            best = nucleus(best, params.top_p * mass)
        if params.min_p > 0:
            best = apply_min_p(best, params.min_p)
        return mx.put_along_axis(mx.full(rows.shape, -mx.inf, rows.dtype), ids, best, axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """What drafts are drawn with: logits as `shaper` shapes them, and a random `key`.

    history: the tokens before, anchor included, for penalties.
    """

    shaper: Shaper
    key: mx.array
    history: list[int]


def exclude_top(rows: mx.array, threshold: float, kept_ids: list[int]) -> mx.array:
    """Rows [S, V] without the tokens above a threshold, but for the least likely of them.

    The arithmetic is that of mlx-lm's `apply_xtc`, which draws its own random number.
    """
    chances = mx.softmax(rows, -1)
    above = mx.where(chances > threshold, chances, mx.inf)
    excluded = chances > above.min(axis=-1, keepdims=True)
    if kept_ids:
        excluded[..., kept_ids] = False
    return mx.where(excluded, -mx.inf, rows)


def nucleus(best: mx.array, mass: mx.array) -> mx.array:
    """Keep the largest of a row's log-probabilities [S, k] that add up to a mass [S, 1].

    The others become -inf. The arithmetic is that of mlx-lm's `apply_top_p`, which takes whole rows
    and a share of their mass.
    """
    ordered = mx.sort(best, axis=-1)
    chances = mx.exp(ordered.astype(mx.float32))
    above = mx.cumsum(chances, axis=-1, reverse=True, inclusive=False)
    dropped = (above >= mass).sum(axis=-1, keepdims=True)
    least = mx.take_along_axis(ordered, dropped, axis=-1)
    return mx.where(best < least, -mx.inf, best)


def recent(tokens: list[int]) -> mx.array:
    return mx.array(tokens[-HISTORY:], dtype=mx.int32)


def penalties(params: SamplingParams) -> list:
    """mlx-lm's logits processors for biases and penalties; empty if all are off."""
    repetition = params.repetition_penalty
    return make_logits_processors(
        logit_bias=dict(params.logit_bias) or None,
        repetition_penalty=None if repetition == 1 else repetition,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )


# Log-probabilities of an answer's tokens, by the target's own logits.


def read_logprobs(
    logits: mx.array, rows: Sequence[int], tokens: Sequence[int], count: int
) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of tokens [n], each from its row of logits [S, V]; computed in float32.

    Each comes with the `count` likeliest tokens of its row, at most V.
    """
    logprobs = logits[mx.array(list(rows)[: len(tokens)])].astype(mx.float32)
    logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
    own = mx.take_along_axis(logprobs, mx.array(list(tokens))[:, None], axis=-1)[:, 0]
    if count:
        ids = top_ids(logprobs, min(count, logprobs.shape[-1]))
    else:
        ids = mx.zeros((len(tokens), 0), mx.int32)
    best = mx.take_along_axis(logprobs, ids, axis=-1)
    order = mx.argsort(-best, axis=-1)
    ids = mx.take_along_axis(ids, order, axis=-1)
    best = mx.take_along_axis(best, order, axis=-1)
    columns = (np.array(array).tolist() for array in (own, ids, best))
    return tuple(
        TokenLogprob(token, logprob, tuple(zip(top, values, strict=True)))
        for token, logprob, top, values in zip(tokens, *columns, strict=True)
    )
