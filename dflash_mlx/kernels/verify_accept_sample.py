"""Which sampled drafts stay, and the bonus token: token by token, or the block as a whole.

Every decision follows from random words that are given. Probabilities are MLX's softmax; what is
summed over the vocabulary is summed in integers, 2^30 to a probability of 1, so that every order of
summation gives the same sum, and the kernels decide bit for bit as the reference does. Rounding to
2^-30 moves the law by less than float32 sums would.
"""

import mlx.core as mx

from . import outcome
from .dispatch import Op
from .outcome import HEADERS, THREADS
from .source import Launcher, Source

INPUTS = ("p", "q", "candidates", "drafts", "words")
SUMS = Source("verify_accept_sample_sums", INPUTS, ("rests", "wholes"), HEADERS)
DRAW = Source("verify_accept_sample_draw", (*INPUTS, "rests", "wholes"), ("outcome",), HEADERS)

ONE = 1 << 30
TINY = 1.1754944e-38  # the smallest normal float32: a draft's q cannot be 0, but can round to it


def reference(
    scores: mx.array,
    drafts: mx.array,
    q: mx.array,
    candidates: mx.array | None,
    words: mx.array,
    joint: bool,
) -> mx.array:
    """The outcome, int32 [γ + 3], of drafts [γ] against the target's log-probabilities.

    scores: [γ + 1, V] float32, up to a constant a row. q: [γ, V] float32, what the drafts were
    drawn from; or [γ, k], that of `candidates` [γ, k], distinct tokens. words: [γ + 1] uint32,
    uniform: one for each draft, the last for the bonus token. Token by token is Leviathan et al.,
    equation 1; `joint` is Sun et al., algorithm 2. A row without a number breaks the outcome.
    """
    p = mx.softmax(scores, axis=-1)
    if candidates is not None:
        nothing = mx.zeros((drafts.size, p.shape[-1]))
        q = mx.put_along_axis(nothing, candidates, q, axis=-1)
    at_p, at_q, chances = at(p[:-1], drafts), at(q, drafts), uniform(words[:-1])
    if joint:
        kept, weight = keep_jointly(p, q, at_p / mx.maximum(at_q, TINY), chances)
    else:
        kept, weight = keep_each(at_p, at_q, chances), mx.array(1.0)
    last = mx.minimum(kept, drafts.size - 1)
    bonus = draw(p[kept], mx.where(kept < drafts.size, q[last], 0), weight, words[-1])
    return outcome.pack(mx.isnan(p[:, 0]).any(), kept, bonus, drafts)


def keep_each(at_p: mx.array, at_q: mx.array, chances: mx.array) -> mx.array:
    """How many drafts stay, each with the chance min(1, p / q): all arrays [γ]."""
    return outcome.count_prefix(chances * at_q < at_p)


def keep_jointly(
    p: mx.array, q: mx.array, ratios: mx.array, chances: mx.array
) -> tuple[mx.array, mx.array]:
    """Algorithm 2 (spec 5.3): how many drafts stay, and w at the row of the bonus token.

    p: [γ + 1, V], q: [γ, V], their ratios at the drafts and uniform chances [γ]. Draft i may be the
    last that stays with the chance h_i = s_i / (s_i + 1 - w_i), s_i the sum of (w_i p - q)+ over
    the row after it; h_γ = w_γ.
    """
    running = [mx.array(1.0)]
    for ratio in ratios:
        running.append(mx.minimum(running[-1] * ratio, 1))
    weights = mx.stack(running)
    surplus = residual(p[1:-1], q[1:], weights[1:-1, None]).sum(axis=-1) / ONE
    spread = surplus + (1 - weights[1:-1])
    passed = (chances[:-1] * spread < surplus) | (spread == 0)
    passed = mx.concatenate([passed, chances[-1:] < weights[-1:]])
    kept = mx.max(mx.where(passed, mx.arange(1, passed.size + 1), 0))
    # With every draft kept the bonus token is a plain sample: q is 0 there, any weight will do.
    return kept, mx.where(kept == passed.size, 1.0, weights[kept])


def draw(p: mx.array, q: mx.array, weight: mx.array, word: mx.array) -> mx.array:
    """A token from (weight p - q)+ over [V], by its inverse CDF; from p where that is 0.

    Where nothing is left after the drafts that stay, p and q are equal and the weight is 1.
    """
    parts = residual(p, q, weight)
    parts = mx.where(parts.sum() > 0, parts, whole(p, weight))
    place = (word.astype(mx.uint64) * parts.sum().astype(mx.uint64)) >> 32
    return (mx.cumsum(parts) <= place.astype(mx.int32)).sum()


def residual(p: mx.array, q: mx.array, weight: mx.array) -> mx.array:
    """(weight p - q)+ in units of 1 / ONE."""
    return mx.maximum(whole(p, weight) - whole(q, mx.array(1.0)), 0)


def whole(p: mx.array, weight: mx.array) -> mx.array:
    """weight p in units of 1 / ONE, to the nearest, int32."""
    return mx.round((weight * ONE) * p).astype(mx.int32)


def uniform(words: mx.array) -> mx.array:
    """Uniform words -> as many floats in [0, 1), multiples of 2^-24."""
    return (words >> 8).astype(mx.float32) * 2.0**-24


def at(rows: mx.array, tokens: mx.array) -> mx.array:
    """rows [γ, V] at tokens [γ] -> [γ]."""
    return mx.take_along_axis(rows, tokens[:, None], axis=-1)[:, 0]


def launch(
    launcher: Launcher,
    scores: mx.array,
    drafts: mx.array,
    q: mx.array,
    candidates: mx.array | None,
    words: mx.array,
    joint: bool,
) -> mx.array:
    """`reference` in MLX's softmax and two dispatches.

    Token by token the first reads only the row of the bonus token, jointly all of them.
    """
    p = mx.softmax(scores, axis=-1)
    rows, vocab = p.shape
    chunks, summed = outcome.chunks_of(vocab), rows if joint else 1
    inputs = [p, q, drafts if candidates is None else candidates, drafts, words]
    template = [("JOINT", joint), ("K", 0 if candidates is None else candidates.shape[-1])]
    sums = launcher(
        SUMS,
        inputs,
        grid=(chunks * THREADS, summed, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(summed, chunks), (summed, chunks)],
        output_dtypes=[mx.int32, mx.int32],
        template=template,
    )
    return launcher(
        DRAW,
        [*inputs, *sums],
        grid=(THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows + 2,)],
        output_dtypes=[mx.int32],
        template=template,
    )[0]


OP = Op("verify_accept_sample", reference, launch, outcome.fits)
