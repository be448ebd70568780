"""What every operation is tried with on a user's machine.

Cases are few, and of the kinds that go wrong: one row, odd sizes, level scores, NaN where that
means something, trees, windows. As a kernel is compiled for dtypes and sizes of heads, they all
have those of the given shapes; the last one has the model's own sizes. Knows operations only by
their arguments.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.kernels.verify_attention import Rows, Scores
from dflash_mlx.speculation.sampling import words as random_words

from .shapes import Linear, Shapes

Case = tuple[Any, ...]
TREE = (-1, 0, 0, 1, 2, 4, 3)  # a branch in each generation, one node after its parent
CODEBOOK = 4096  # rows of a codebook at most: how many there are changes nothing
# Rounding: outputs are compared relative to 1, or to what they should be where that is more. MLX's
# own float32 products may be made of 19 bits on the newest chips.
TOLERANCE = {mx.float32: 2e-3, mx.float16: 4e-3, mx.bfloat16: 3e-2}


def some(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Normal numbers, always the same."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def dtype_of(name: str) -> mx.Dtype:
    """The dtype of a name."""
    return getattr(mx, name)


# Accepting


def logits_of(rows: int, vocab: int, dtype: mx.Dtype, wrong: int | None = None) -> Case:
    """Logits of which many are level, and drafts that are their choices up to slot `wrong`."""
    logits = mx.round(4 * some(rows, rows, vocab)) / 4
    drafts = mx.argmax(logits[:-1], axis=-1)
    if wrong is not None:
        drafts[wrong] = (drafts[wrong] + 1) % vocab
    return logits.astype(dtype), drafts


def accept_cases(shapes: Shapes) -> list[Case]:
    """One draft; more drafts than lanes; a NaN after the prefix, infinities; the model's."""
    dtype = dtype_of(shapes.dtype)
    broken, drafts = logits_of(3, 4103, dtype, 0)
    broken[2, 90] = mx.nan
    endless, others = logits_of(3, 4103, dtype)
    endless[0, 1021], endless[1, 4099] = mx.inf, -mx.inf
    return [
        logits_of(2, 9, dtype),
        logits_of(11, 4103, dtype, 9),
        logits_of(40, 33, dtype, 34),
        (broken, drafts),
        (endless, others),
        logits_of(shapes.rows, shapes.vocab, dtype, shapes.rows // 2),
    ]


def sampled(seed: int, rows: int, vocab: int, k: int, joint: bool, apart: float = 0.4) -> Case:
    """A block of sampled drafts, from all tokens or from `k` candidates where k is not 0."""
    scores = 3 * some(seed, rows, vocab)
    own, candidates = scores[:-1] + apart * some(seed + 1, rows - 1, vocab), None
    words = random_words(mx.random.key(seed), rows)
    if k:
        candidates = mx.sort(mx.argpartition(-own, k - 1, axis=-1)[:, :k], axis=-1)
        own = mx.take_along_axis(own, candidates, axis=-1)
    drafts = mx.random.categorical(own, key=mx.random.key(seed + 1))
    if candidates is not None:
        drafts = mx.take_along_axis(candidates, drafts[:, None], axis=-1)[:, 0]
    return scores, drafts, mx.softmax(own, axis=-1), candidates, words, joint


def level(joint: bool) -> Case:
    """Probabilities that are powers of 2, and words that stand exactly on their borders."""
    q = mx.array([[0.25, 0.25, 0.5, 0, 0, 0, 0, 0], [0.125] * 8])
    words = mx.array([1 << 31, 0, 1 << 31], dtype=mx.uint32)
    return mx.zeros((3, 8)), mx.array([0, 5]), q, None, words, joint


def sample_cases(shapes: Shapes) -> list[Case]:
    """By both rules: near and far drafts, two chunks, borders, a NaN; the model's."""
    k, found = shapes.selector.candidates if shapes.selector else 0, []
    few = min(k, 29)
    for joint in (False, True):
        found += [sampled(seed, 12, 4200, few, joint) for seed in (1, 3)]
        found += [sampled(5, 10, 40, few, joint, 1.0), sampled(6, 2, 33, few, joint, 0.0)]
        found += [] if k else [level(joint)]
        scores, *rest = sampled(7, 10, 50, few, joint)
        scores[9, 9] = mx.nan
        found.append((scores, *rest))
    model = sampled(9, shapes.rows, shapes.vocab, min(k, shapes.vocab), True)
    return [*found, (*model[:-1], False), model]


def meant(outcome: mx.array) -> mx.array:
    """An outcome without what means nothing: the rest of a broken one."""
    return mx.where((outcome[0] == 1) & (mx.arange(outcome.size) > 0), 0, outcome)


def walk_cases(shapes: Shapes) -> list[Case]:
    """Whole numbers, few different ones: every order of a sum gives the same, and many are level.

    One slot, several; the model's.
    """
    assert shapes.selector is not None
    k, rank = shapes.selector.candidates, shapes.selector.rank
    dtype, own = dtype_of(shapes.selector.dtype), dtype_of(shapes.dtype)

    def lattice(seed: int, slots: int) -> Case:
        vocab = max(k, min(shapes.vocab, CODEBOOK))
        hidden, before, after = (
            mx.round(0.7 * some(seed + place, count, rank)).astype(kind)
            for place, count, kind in ((0, slots, own), (1, vocab, dtype), (2, vocab, dtype))
        )
        ids = mx.argpartition(some(seed + 3, slots, vocab), k - 1, axis=-1)[:, :k]
        scores = mx.round(0.7 * some(seed + 4, slots, k))
        return scores, mx.sort(ids, axis=-1).astype(mx.uint32), 7, hidden, before, after

    return [lattice(1, 1), lattice(2, 6), lattice(3, 13), lattice(4, shapes.rows - 1)]


# Gated DeltaNet


def delta_rows(shapes: Shapes, count: int, seed: int) -> Case:
    """q, k, v, g, beta and the state before; keys of length one, so that a state stays bounded."""
    assert shapes.delta is not None
    sizes, dtype = shapes.delta, dtype_of(shapes.dtype)
    q, k = (some(seed + n, count, sizes.key_heads, sizes.key_dim) for n in (0, 1))
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    q = q * sizes.key_dim**-0.5
    v = some(seed + 2, count, sizes.value_heads, sizes.value_dim, dtype=dtype)
    g, beta = (mx.sigmoid(some(seed + n, count, sizes.value_heads)) for n in (3, 4))
    state = some(seed + 5, sizes.value_heads, sizes.value_dim, sizes.key_dim)
    return q.astype(dtype), k.astype(dtype), v, g, beta.astype(dtype), state


def tape_cases(shapes: Shapes) -> list[Case]:
    """One row, three, the model's."""
    return [delta_rows(shapes, count, count) for count in (1, 3, shapes.rows)]


def tree_cases(shapes: Shapes) -> list[Case]:
    """A tree with several roots, and the model's: as wide as deep."""
    wide = tuple(max(-1, row // 2 - 1) for row in range(shapes.rows))
    return [(*delta_rows(shapes, len(p), 7), p) for p in ((-1, *TREE[1:-1], -1, 0, 5), wide)]


def replay_cases(shapes: Shapes) -> list[Case]:
    """Nothing, one and some rows of a path accepted in two layers; half of a chain in all."""
    assert shapes.delta is not None
    sizes, dtype = shapes.delta, dtype_of(shapes.dtype)

    def layers(count: int, rows: int, path: Sequence[int], taken: int) -> Case:
        _, k, _, g, _, state = delta_rows(shapes, rows, taken)
        stack = [mx.stack([part] * count) for part in (state, k, g)]
        delta = some(1, count, rows, sizes.value_heads, sizes.value_dim)
        inputs = some(2, count, sizes.window + rows, sizes.channels, dtype=dtype)
        at, number = mx.array([*path], mx.int32), mx.array([taken], mx.int32)
        return stack[0], delta, *stack[1:], at, number, inputs

    path, half = (1, 4, 6, 7), max(1, shapes.rows // 2)
    found = [layers(2, 9, path, taken) for taken in (0, 1, 4)]
    return [*found, layers(sizes.layers, shapes.rows, range(half), half)]


# Attention


def attention_cases(shapes: Shapes) -> list[Case]:
    """For each kind of layers: one row alone, a tree, a block over a split's border, the model's.

    What lies behind the block is NaN.
    """
    found = []
    for kind in shapes.attention:
        heads, dtype = (kind.heads, kind.kv_heads), dtype_of(shapes.dtype)
        sinks = some(1, kind.heads, dtype=dtype) if kind.sinks else None
        chain = tuple(range(-1, shapes.rows - 1))
        for parents, context, start, window in (
            ((-1,), 0, 0, 0),
            (TREE, 37, 5, 9 if kind.window else 0),
            (TREE, 253, 0, kind.window and 12),
            (chain, shapes.context, 0, kind.window),
        ):
            count = context + len(parents)
            q = some(2, heads[0], len(parents), kind.head_dim, dtype=dtype)
            spare = mx.full((heads[1], 4, kind.head_dim), mx.nan, dtype=dtype)
            parts = (some(n, heads[1], count, kind.head_dim, dtype=dtype) for n in (3, 4))
            keys, values = (mx.concatenate([part, spare], axis=1) for part in parts)
            scores = Scores(kind.head_dim**-0.5, window=window, sinks=sinks)
            found.append((q, keys, values, Rows.of(context, parents, start), scores))
    return found


# Products


def weights_of(kind: Linear, outputs: int, inputs: int, bias: mx.array | None = None) -> Weights:
    """Random weights, so small that products are about as large as what they are multiplied with.

    Any bits are weights: nothing is packed here.
    """
    small = inputs**-0.5
    if not kind.bits:
        values = small * some(outputs, outputs, inputs)
        return Weights(values.astype(dtype_of(kind.dtype)), bias=bias)
    key, shape = mx.random.key(outputs), (outputs, inputs * kind.bits // 32)
    values = mx.random.randint(0, 1 << 32, shape, mx.uint32, key=key)
    scales = mx.random.uniform(0.5 * small, small, (outputs, inputs // kind.group), key=key)
    packing = kind.group, kind.bits, kind.mode
    if kind.mode != "affine":  # scales are powers of 2, by their exponents
        powers = mx.round(mx.log2(scales)).astype(mx.int32) + 127
        return Weights(values, powers.astype(mx.uint8), None, bias, *packing)
    scales = (scales * 2.0 ** (1 - kind.bits)).astype(dtype_of(kind.dtype))
    return Weights(values, scales, -scales * 2 ** (kind.bits - 1), bias, *packing)


def product_cases(shapes: Shapes) -> list[Case]:
    """For each kind of weights: one row, a few, more than are computed at once; the model's."""
    found, dtype = [], dtype_of(shapes.dtype)
    for kind in shapes.linears:
        few = 3 * max(kind.group, 64)
        bias = some(1, 35, dtype=dtype)
        for rows, weights in (
            (1, weights_of(kind, 33, few)),
            (19, weights_of(kind, 35, few, bias)),
            (shapes.rows, weights_of(kind, kind.outputs, kind.inputs)),
        ):
            inputs = weights.values.shape[1] * 32 // (weights.bits or 32)
            found.append((some(rows, rows, inputs, dtype=dtype), weights))
    return found
