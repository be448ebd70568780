"""The inputs with which every operation is tried on a user's machine.

There are few cases, of the kinds that tend to fail: one row, odd sizes, ties, NaN, trees, windows.
A kernel is compiled for one dtype and head size, so all cases have those of the given shapes. The
last case has the sizes of the model. This module knows the operations only by their arguments.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from dflash_mlx.speculation.acceptance import random_bits

from .shapes import Shapes

Case = tuple[Any, ...]
TREE = (-1, 0, 0, 1, 2, 4, 3)  # parents; branches at each depth, one node right after its parent
MAX_CODEBOOK_ROWS = 4096  # more rows would test nothing else
# Relative to the larger of 1 and the expected absolute value. MLX may compute float32 products with
# 19 bits (TF32) on the newest chips.
TOLERANCE = {mx.float32: 2e-3, mx.float16: 4e-3, mx.bfloat16: 3e-2}


def normal_array(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Normal random numbers from a seed."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def dtype_of(name: str) -> mx.Dtype:
    """The dtype with this name in `mlx.core`."""
    return getattr(mx, name)


# Accept operations


def greedy_case(rows: int, vocab: int, dtype: mx.Dtype, wrong: int | None = None) -> Case:
    """Logits [rows, vocab] with many ties, and drafts equal to their argmax except at `wrong`."""
    logits = mx.round(4 * normal_array(rows, rows, vocab)) / 4
    drafts = mx.argmax(logits[:-1], axis=-1)
    if wrong is not None:
        drafts[wrong] = (drafts[wrong] + 1) % vocab
    return logits.astype(dtype), drafts


def accept_cases(shapes: Shapes) -> list[Case]:
    """One draft; more drafts than SIMD lanes; a NaN after the prefix; infinities; the model's."""
    dtype = dtype_of(shapes.dtype)
    with_nan, drafts = greedy_case(3, 4103, dtype, 0)
    with_nan[2, 90] = mx.nan
    with_inf, others = greedy_case(3, 4103, dtype)
    with_inf[0, 1021], with_inf[1, 4099] = mx.inf, -mx.inf
    return [
        greedy_case(2, 9, dtype),
        greedy_case(11, 4103, dtype, 9),
        greedy_case(40, 33, dtype, 34),
        (with_nan, drafts),
        (with_inf, others),
        greedy_case(shapes.rows, shapes.vocab, dtype, shapes.rows // 2),
    ]


def sampled_case(seed: int, rows: int, vocab: int, k: int, block: bool, apart: float = 0.4) -> Case:
    """A block of sampled drafts, from the vocabulary (`k` 0) or from `k` candidates each.

    `apart` is the distance of the drafter's logits from the target's. `block`: block verification.
    """
    scores = 3 * normal_array(seed, rows, vocab)
    logits, candidates = scores[:-1] + apart * normal_array(seed + 1, rows - 1, vocab), None
    bits = random_bits(mx.random.key(seed), rows)
    if k:
        candidates = mx.sort(mx.argpartition(-logits, k - 1, axis=-1)[:, :k], axis=-1)
        logits = mx.take_along_axis(logits, candidates, axis=-1)
    drafts = mx.random.categorical(logits, key=mx.random.key(seed + 1))
    if candidates is not None:
        drafts = mx.take_along_axis(candidates, drafts[:, None], axis=-1)[:, 0]
    return scores, drafts, mx.softmax(logits, axis=-1), candidates, bits, block


def tie_case(block: bool) -> Case:
    """Probabilities that are powers of 2, and random bits exactly at the acceptance thresholds."""
    q = mx.array([[0.25, 0.25, 0.5, 0, 0, 0, 0, 0], [0.125] * 8])
    bits = mx.array([1 << 31, 0, 1 << 31], dtype=mx.uint32)
    return mx.zeros((3, 8)), mx.array([0, 5]), q, None, bits, block


def sample_cases(shapes: Shapes) -> list[Case]:
    """Both rules: near and far drafts, two chunks of the vocabulary, ties, a NaN; the model's."""
    k, found = shapes.selector.candidates if shapes.selector else 0, []
    few = min(k, 29)
    for block in (False, True):
        found += [sampled_case(seed, 12, 4200, few, block) for seed in (1, 3)]
        found += [sampled_case(5, 10, 40, few, block, 1.0)]
        found += [sampled_case(6, 2, 33, few, block, 0.0)]
        found += [] if k else [tie_case(block)]
        scores, *rest = sampled_case(7, 10, 50, few, block)
        scores[9, 9] = mx.nan
        found.append((scores, *rest))
    model = sampled_case(9, shapes.rows, shapes.vocab, min(k, shapes.vocab), True)
    return [*found, (*model[:-1], False), model]


def defined_part(outcome: mx.array) -> mx.array:
    """The outcome of an accept operation; if its NaN flag is set, zeros after the flag."""
    return mx.where((outcome[0] == 1) & (mx.arange(outcome.size) > 0), 0, outcome)


def walk_cases(shapes: Shapes) -> list[Case]:
    """One position, six, 13; the model's.

    The values are small integers: sums do not depend on their order, and there are many ties.
    """
    assert shapes.selector is not None
    k, rank = shapes.selector.candidates, shapes.selector.rank
    dtype, hidden_dtype = dtype_of(shapes.selector.dtype), dtype_of(shapes.dtype)

    def lattice(seed: int, positions: int) -> Case:
        vocab = max(k, min(shapes.vocab, MAX_CODEBOOK_ROWS))
        hidden, before, after = (
            mx.round(0.7 * normal_array(seed + place, count, rank)).astype(kind)
            for place, count, kind in (
                (0, positions, hidden_dtype),
                (1, vocab, dtype),
                (2, vocab, dtype),
            )
        )
        ids = mx.argpartition(normal_array(seed + 3, positions, vocab), k - 1, axis=-1)[:, :k]
        scores = mx.round(0.7 * normal_array(seed + 4, positions, k))
        return scores, mx.sort(ids, axis=-1).astype(mx.uint32), 7, hidden, before, after

    return [lattice(1, 1), lattice(2, 6), lattice(3, 13), lattice(4, shapes.rows - 1)]


# Gated DeltaNet


def delta_rows(shapes: Shapes, count: int, seed: int) -> Case:
    """q, k, v, g, beta and the state before; unit keys keep the state bounded."""
    assert shapes.delta is not None
    sizes, dtype = shapes.delta, dtype_of(shapes.dtype)
    q, k = (normal_array(seed + n, count, sizes.key_heads, sizes.key_dim) for n in (0, 1))
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    q = q * sizes.key_dim**-0.5
    v = normal_array(seed + 2, count, sizes.value_heads, sizes.value_dim, dtype=dtype)
    g, beta = (mx.sigmoid(normal_array(seed + n, count, sizes.value_heads)) for n in (3, 4))
    state = normal_array(seed + 5, sizes.value_heads, sizes.value_dim, sizes.key_dim)
    return q.astype(dtype), k.astype(dtype), v, g, beta.astype(dtype), state


def tape_cases(shapes: Shapes) -> list[Case]:
    """One row, three; the model's."""
    return [delta_rows(shapes, count, count) for count in (1, 3, shapes.rows)]


def tree_cases(shapes: Shapes) -> list[Case]:
    """A tree with several roots; a binary tree of the model's number of rows."""
    wide = tuple(max(-1, row // 2 - 1) for row in range(shapes.rows))
    return [(*delta_rows(shapes, len(p), 7), p) for p in ((-1, *TREE[1:-1], -1, 0, 5), wide)]


def replay_cases(shapes: Shapes) -> list[Case]:
    """None, one and four rows of a path accepted in two layers; half of a chain in one layer, as
    the engine launches it."""
    assert shapes.delta is not None
    sizes, dtype = shapes.delta, dtype_of(shapes.dtype)

    def layers(count: int, rows: int, path: Sequence[int], accepted: int) -> Case:
        _, k, _, g, _, state = delta_rows(shapes, rows, accepted)
        stack = [mx.stack([part] * count) for part in (state, k, g)]
        delta = normal_array(1, count, rows, sizes.value_heads, sizes.value_dim)
        inputs = normal_array(2, count, sizes.window + rows, sizes.channels, dtype=dtype)
        at, number = mx.array([*path], mx.int32), mx.array([accepted], mx.int32)
        return stack[0], delta, *stack[1:], at, number, inputs

    path, half = (1, 4, 6, 7), max(1, shapes.rows // 2)
    found = [layers(2, 9, path, accepted) for accepted in (0, 1, 4)]
    return [*found, layers(1, shapes.rows, range(half), half)]
