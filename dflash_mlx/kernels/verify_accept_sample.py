"""Acceptance of sampled drafts by token rejection or block verification, and the bonus token.

Token rejection: Leviathan et al., arXiv 2211.17192. Block verification: Sun et al., arXiv
2403.10444. All randomness comes from the given random bits. Probabilities are MLX's softmax; sums
over the vocabulary are sums of integers in units of 2^-30. Integer sums do not depend on their
order, so the kernels and the reference give the same bits. The rounding error is less than that of
float32 sums.
"""

from typing import Any

import mlx.core as mx

from . import outcome
from .dispatch import Op
from .outcome import HEADERS, THREADS
from .samples import Case, normal_array
from .shapes import Shapes
from .source import Launcher, Source, pad_small, recorded

INPUTS = ("p", "q", "candidates", "drafts", "random_bits")
PARTIAL_SUMS = ("residual_sums", "p_sums")
SUMS = Source("verify_accept_sample_sums", INPUTS, PARTIAL_SUMS, HEADERS)
DRAW = Source("verify_accept_sample_draw", (*INPUTS, *PARTIAL_SUMS), ("outcome",), HEADERS)

ONE = 1 << 30  # a probability of 1 as an integer
TINY = 1.1754944e-38  # the smallest normal float32; q of a draft is positive but may round to 0


def reference(
    scores: mx.array,
    drafts: mx.array,
    q: mx.array,
    candidates: mx.array | None,
    random_bits: mx.array,
    block: bool,
) -> mx.array:
    """The outcome (see `outcome.pack`), int32 [γ + 3], of sampled drafts [γ].

    scores: float32 [γ + 1, V], the target's log-probabilities up to a constant for each row. q:
    float32 [γ, V], the distributions that the drafts were drawn from; or [γ, k], the probabilities
    of `candidates` [γ, k], distinct tokens. random_bits: uint32 [γ + 1], uniform; one for each
    draft, the last for the bonus token. block: False is token rejection (Leviathan et al., equation
    1), True block verification (Sun et al., algorithm 2). A NaN row sets the outcome's NaN flag.
    """
    p = mx.softmax(scores, axis=-1)
    if candidates is not None:
        zeros = mx.zeros((drafts.size, p.shape[-1]))
        q = mx.put_along_axis(zeros, candidates, q, axis=-1)
    p_drafts = gather(p[:-1], drafts)
    q_drafts = gather(q, drafts)
    uniforms = uniform(random_bits[:-1])
    if block:
        ratios = p_drafts / mx.maximum(q_drafts, TINY)
        accepted, weight = accept_block(p, q, ratios, uniforms)
    else:
        accepted = accept_tokens(p_drafts, q_drafts, uniforms)
        weight = mx.array(1.0)
    last = mx.minimum(accepted, drafts.size - 1)
    q_bonus = mx.where(accepted < drafts.size, q[last], 0)
    bonus = sample_residual(p[accepted], q_bonus, weight, random_bits[-1])
    return outcome.pack(mx.isnan(p[:, 0]).any(), accepted, bonus, drafts)


def accept_tokens(p_drafts: mx.array, q_drafts: mx.array, uniforms: mx.array) -> mx.array:
    """The number of accepted drafts, each with the probability min(1, p / q): arrays [γ] -> []."""
    return outcome.count_prefix(uniforms * q_drafts < p_drafts)


def accept_block(
    p: mx.array, q: mx.array, ratios: mx.array, uniforms: mx.array
) -> tuple[mx.array, mx.array]:
    """Sun et al. (arXiv 2403.10444), algorithm 2: the number of accepted drafts, and w there.

    p: [γ + 1, V], q: [γ, V]; ratios: [γ], p / q at the drafts; uniforms: [γ] in [0, 1). w_i is the
    running min(1, w p / q). Draft i passes with the probability h_i = s_i / (s_i + 1 - w_i), where
    s_i is the sum of (w_i p - q)+ over the row after it; h_γ = w_γ. The last draft that passes is
    the last accepted one.
    """
    running = [mx.array(1.0)]
    for ratio in ratios:
        running.append(mx.minimum(running[-1] * ratio, 1))
    weights = mx.stack(running)
    surplus = residual(p[1:-1], q[1:], weights[1:-1, None]).sum(axis=-1) / ONE
    spread = surplus + (1 - weights[1:-1])
    passed = (uniforms[:-1] * spread < surplus) | (spread == 0)
    passed = mx.concatenate([passed, uniforms[-1:] < weights[-1:]])
    accepted = mx.max(mx.where(passed, mx.arange(1, passed.size + 1), 0))
    # If all drafts are accepted, the bonus token is a sample of p: q is 0, and the weight is free.
    return accepted, mx.where(accepted == passed.size, 1.0, weights[accepted])


def sample_residual(p: mx.array, q: mx.array, weight: mx.array, bits: mx.array) -> mx.array:
    """A token drawn from the residual (weight p - q)+ [V] by its inverse CDF, int [].

    From p if the residual is 0: then p and q are equal, and the weight is 1.
    """
    parts = residual(p, q, weight)
    parts = mx.where(parts.sum() > 0, parts, to_fixed_point(p, weight))
    place = (bits.astype(mx.uint64) * parts.sum().astype(mx.uint64)) >> 32
    return (mx.cumsum(parts) <= place.astype(mx.int32)).sum()


def residual(p: mx.array, q: mx.array, weight: mx.array) -> mx.array:
    """(weight p - q)+ in units of 1 / ONE, int32."""
    return mx.maximum(to_fixed_point(p, weight) - to_fixed_point(q, mx.array(1.0)), 0)


def to_fixed_point(p: mx.array, weight: mx.array) -> mx.array:
    """weight p in units of 1 / ONE, rounded to the nearest, int32."""
    return mx.round((weight * ONE) * p).astype(mx.int32)


def uniform(random_bits: mx.array) -> mx.array:
    """Random uint32 -> uniform float32 in [0, 1), multiples of 2^-24."""
    return (random_bits >> 8).astype(mx.float32) * 2.0**-24


def gather(rows: mx.array, tokens: mx.array) -> mx.array:
    """rows [γ, V] at tokens [γ] -> [γ]."""
    return mx.take_along_axis(rows, tokens[:, None], axis=-1)[:, 0]


def launch(
    launcher: Launcher,
    scores: mx.array,
    drafts: mx.array,
    q: mx.array,
    candidates: mx.array | None,
    random_bits: mx.array,
    block: bool,
) -> mx.array:
    """As `reference`: MLX's softmax, then two dispatches.

    The first one sums the row of the bonus token (token rejection) or all rows (block).
    """
    small = outcome.ids(drafts)
    tokens = small if candidates is None else outcome.ids(candidates)
    count = 0 if candidates is None else candidates.shape[-1]
    p = mx.softmax(scores, axis=-1)
    run = recorded(launcher, dispatch, len(p))
    return run(p, pad_small(q), tokens, small, pad_small(random_bits), count, block)


def dispatch(launcher: Launcher, *args: Any) -> mx.array:
    """The two dispatches of `launch`, recorded once for each number of rows.

    The last arguments are the number of candidates of a position, or 0, and `block`.
    """
    *inputs, count, block = args
    rows, vocab = inputs[0].shape
    chunks = outcome.chunk_count(vocab)
    summed = rows if block else 1
    template = [("BLOCK", block), ("K", count)]
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


def cases(shapes: Shapes) -> list[Case]:
    """For both rules: near and far drafts, two chunks, ties, a NaN, and the model's sizes."""
    k = shapes.selector.candidates if shapes.selector else 0
    few = min(k, 29)
    found = []
    for block in (False, True):
        found += [sampled_case(seed, 12, 4200, few, block) for seed in (1, 3)]
        found.append(sampled_case(5, 10, 40, few, block, 1.0))
        found.append(sampled_case(6, 2, 33, few, block, 0.0))
        if not k:  # powers of 2, and random bits exactly at the acceptance thresholds
            q = mx.array([[0.25, 0.25, 0.5, 0, 0, 0, 0, 0], [0.125] * 8])
            bits = mx.array([1 << 31, 0, 1 << 31], dtype=mx.uint32)
            found.append((mx.zeros((3, 8)), mx.array([0, 5]), q, None, bits, block))
        scores, *rest = sampled_case(7, 10, 50, few, block)
        scores[9, 9] = mx.nan
        found.append((scores, *rest))
    sizes = shapes.rows, shapes.vocab, min(k, shapes.vocab)
    return [*found, *(sampled_case(9, *sizes, block) for block in (False, True))]


def sampled_case(seed: int, rows: int, vocab: int, k: int, block: bool, apart: float = 0.4) -> Case:
    """A block of sampled drafts, from the vocabulary (`k` 0) or from `k` candidates each.

    `apart` is the distance of the drafter's logits from the target's.
    """
    scores = 3 * normal_array(seed, rows, vocab)
    logits = scores[:-1] + apart * normal_array(seed + 1, rows - 1, vocab)
    key = mx.random.key(seed + 1)
    bits = mx.random.split(mx.random.key(seed), rows)[:, 0]
    if not k:
        drafts = mx.random.categorical(logits, key=key)
        return scores, drafts, mx.softmax(logits, axis=-1), None, bits, block
    candidates = mx.sort(mx.argpartition(-logits, k - 1, axis=-1)[:, :k], axis=-1)
    logits = mx.take_along_axis(logits, candidates, axis=-1)
    chosen = mx.random.categorical(logits, key=key)
    drafts = mx.take_along_axis(candidates, chosen[:, None], axis=-1)[:, 0]
    return scores, drafts, mx.softmax(logits, axis=-1), candidates, bits, block
