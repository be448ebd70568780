"""The inputs with which the self-check runs every operation on a user's machine.

There are few cases, of the kinds that tend to fail: one row, odd sizes, ties, NaN, trees, windows.
A kernel is compiled for one dtype and head size, so all cases have those of the given shapes. The
last case has the sizes of the model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.switch_layers import SwiGLU

from dflash_mlx.device import Chip
from dflash_mlx.kernels.grouped_experts import BUCKETS as EXPERT_BUCKETS
from dflash_mlx.kernels.grouped_experts import Experts, shared_by_mlx
from dflash_mlx.kernels.grouped_experts import size as expert_size
from dflash_mlx.kernels.padded_rows import size as padded_size
from dflash_mlx.kernels.row_limits import Padding, padding
from dflash_mlx.kernels.small_m_qmm import BUCKETS, LEAST_COLUMNS, MOST_COLUMNS, Weights
from dflash_mlx.kernels.small_m_qmm import size as product_size
from dflash_mlx.kernels.verify_attention import (
    FEW_ROWS,
    MAX_ATTENTION_ROWS,
    NEAR,
    Rows,
    Scores,
)
from dflash_mlx.kernels.verify_attention import size as attention_size
from dflash_mlx.speculation.acceptance import random_bits

from .shapes import AttentionShape, ExpertShape, LinearShape, Shapes

Case = tuple[Any, ...]
TREE = (-1, 0, 0, 1, 2, 4, 3)  # parents; branches at each depth, one node right after its parent
MAX_CODEBOOK_ROWS = 4096  # more rows would test nothing else
# Relative to the larger of 1 and the expected absolute value. MLX may compute float32 products with
# 19 bits (TF32) on the newest chips.
TOLERANCE = {mx.float32: 2e-3, mx.float16: 4e-3, mx.bfloat16: 3e-2}


def normal_array(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def dtype_of(name: str) -> mx.Dtype:
    return getattr(mx, name)


def binary_tree(rows: int) -> tuple[int, ...]:
    """The parents of a tree's rows, each with two children while there are rows."""
    return tuple((row - 1) // 2 for row in range(rows))


# Accept operations


def greedy_case(rows: int, vocab: int, dtype: mx.Dtype, wrong: int | None = None) -> Case:
    """Logits [rows, vocab] with many ties, and drafts equal to their argmax except at `wrong`."""
    logits = mx.round(4 * normal_array(rows, rows, vocab)) / 4
    drafts = mx.argmax(logits[:-1], axis=-1)
    if wrong is not None:
        drafts[wrong] = (drafts[wrong] + 1) % vocab
    return logits.astype(dtype), drafts


def accept_cases(shapes: Shapes) -> list[Case]:
    """Cases of one draft, more drafts than SIMD lanes, a NaN, infinities, and the model's sizes."""
    dtype = dtype_of(shapes.dtype)
    with_nan, drafts = greedy_case(3, 4103, dtype, 0)
    with_nan[2, 90] = mx.nan
    with_inf, others = greedy_case(3, 4103, dtype)
    with_inf[0, 1021] = mx.inf
    with_inf[1, 4099] = -mx.inf
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
    logits = scores[:-1] + apart * normal_array(seed + 1, rows - 1, vocab)
    candidates = None
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
    """Cases for both rules: near and far drafts, two chunks, ties, a NaN, the model's sizes."""
    k = shapes.selector.candidates if shapes.selector else 0
    cases = []
    few = min(k, 29)
    for block in (False, True):
        cases += [sampled_case(seed, 12, 4200, few, block) for seed in (1, 3)]
        cases += [sampled_case(5, 10, 40, few, block, 1.0)]
        cases += [sampled_case(6, 2, 33, few, block, 0.0)]
        cases += [] if k else [tie_case(block)]
        scores, *rest = sampled_case(7, 10, 50, few, block)
        scores[9, 9] = mx.nan
        cases.append((scores, *rest))
    model = sampled_case(9, shapes.rows, shapes.vocab, min(k, shapes.vocab), True)
    return [*cases, (*model[:-1], False), model]


def defined_part(outcome: mx.array) -> mx.array:
    """The outcome of an accept operation; if its NaN flag is set, zeros after the flag."""
    return mx.where((outcome[0] == 1) & (mx.arange(outcome.size) > 0), 0, outcome)


def walk_cases(shapes: Shapes) -> list[Case]:
    """Cases of 1, 6 and 13 positions, and of the model's block.

    The values are small integers: sums do not depend on their order, and there are many ties.
    """
    assert shapes.selector is not None
    k = shapes.selector.candidates
    rank = shapes.selector.rank
    dtype = dtype_of(shapes.selector.dtype)
    hidden_dtype = dtype_of(shapes.dtype)

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
    """q, k, v, g, beta and the state before the rows; unit keys keep the state bounded."""
    assert shapes.delta is not None
    sizes = shapes.delta
    dtype = dtype_of(shapes.dtype)
    q, k = (normal_array(seed + n, count, sizes.key_heads, sizes.key_dim) for n in (0, 1))
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    q = q * sizes.key_dim**-0.5
    v = normal_array(seed + 2, count, sizes.value_heads, sizes.value_dim, dtype=dtype)
    g, beta = (mx.sigmoid(normal_array(seed + n, count, sizes.value_heads)) for n in (3, 4))
    state = normal_array(seed + 5, sizes.value_heads, sizes.value_dim, sizes.key_dim)
    return q.astype(dtype), k.astype(dtype), v, g, beta.astype(dtype), state


def projected_rows(shapes: Shapes, places: list[list[int]], rows: int) -> Case:
    """The arguments of `gated_delta_inputs` for rows that read these places."""
    assert shapes.delta is not None
    sizes = shapes.delta
    dtype = dtype_of(shapes.dtype)
    heads = sizes.value_heads
    channels = 2 * sizes.key_heads * sizes.key_dim + heads * sizes.value_dim
    mixed, a, b = (normal_array(seed, rows, n) for seed, n in enumerate((channels, heads, heads)))
    window = normal_array(3, sizes.window, channels)
    weight = normal_array(4, channels, sizes.window + 1, 1)
    fed = [part.astype(dtype) for part in (mixed, a, b, window, weight)]
    decay, bias = (
        normal_array(5 + number, heads).astype(dtype_of(name))
        for number, name in enumerate((sizes.decay, sizes.bias))
    )
    return *fed, decay, bias, mx.array(places, mx.int32), sizes.key_heads, sizes.key_dim


def input_cases(shapes: Shapes) -> list[Case]:
    assert shapes.delta is not None
    size = shapes.delta.window + 1
    chain = [[*range(row, row + size)] for row in range(max(shapes.rows, 8))]
    tree = [chain[0]]
    for row, parent in enumerate(TREE[1:], 1):
        tree.append([*tree[parent][1:], size - 1 + row])
    cases = ((chain, 1), (tree, len(tree)), (chain, shapes.rows))
    return [projected_rows(shapes, places, rows) for places, rows in cases]


def tape_cases(shapes: Shapes) -> list[Case]:
    return [delta_rows(shapes, count, count) for count in (1, 3, shapes.rows)]


def tree_cases(shapes: Shapes) -> list[Case]:
    trees = (-1, *TREE[1:-1], -1, 0, 5), binary_tree(shapes.rows)
    return [(*delta_rows(shapes, len(parents), 7), parents) for parents in trees]


def replay_cases(shapes: Shapes) -> list[Case]:
    """Cases of 0, 1 and 4 accepted rows of a path in two layers, and of half a chain in one layer.

    The engine launches it for one layer at a time.
    """
    assert shapes.delta is not None
    sizes = shapes.delta
    dtype = dtype_of(shapes.dtype)

    def layers(count: int, rows: int, path: Sequence[int], accepted: int) -> Case:
        _, k, _, g, _, state = delta_rows(shapes, rows, accepted)
        stack = [mx.stack([part] * count) for part in (state, k, g)]
        delta = normal_array(1, count, rows, sizes.value_heads, sizes.value_dim)
        inputs = normal_array(2, count, sizes.window + rows, sizes.channels, dtype=dtype)
        at = mx.array([*path], mx.int32)
        number = mx.array([accepted], mx.int32)
        return stack[0], delta, *stack[1:], at, number, inputs

    path = (1, 4, 6, 7)
    half = max(1, shapes.rows // 2)
    cases = [layers(2, 9, path, accepted) for accepted in (0, 1, 4)]
    return [*cases, layers(1, shapes.rows, range(half), half)]


# The products of a few rows with a model's matrices


def weights_of(kind: LinearShape, outputs: int, inputs: int, dtype: mx.Dtype) -> Weights:
    """Random weights, scaled so that products are about as large as their inputs.

    Quantised weights are random bits: all bit patterns are valid. A bias has the `dtype`.
    """
    small = inputs**-0.5
    bias = normal_array(1, outputs, dtype=dtype) if kind.biased else None
    if not kind.bits:
        values = small * normal_array(outputs, outputs, inputs)
        return Weights(values.astype(dtype_of(kind.dtype)), bias=bias)
    key = mx.random.key(outputs)
    shape = (outputs, inputs * kind.bits // 32)
    values = mx.random.randint(0, 1 << 32, shape, mx.uint32, key=key)
    scales = mx.random.uniform(0.5 * small, small, (outputs, inputs // kind.group), key=key)
    packing = kind.group, kind.bits, kind.mode
    if kind.mode != "affine":  # scales are powers of 2, stored as exponents
        powers = mx.round(mx.log2(scales)).astype(mx.int32) + 127
        return Weights(values, powers.astype(mx.uint8), None, bias, *packing)
    scales = (scales * 2.0 ** (1 - kind.bits)).astype(dtype_of(kind.dtype))
    return Weights(values, scales, -scales * 2 ** (kind.bits - 1), bias, *packing)


def product_cases(shapes: Shapes) -> list[Case]:
    """For each kind of weights, one case per size of a threadgroup, then the model's sizes.

    19 rows need two of the largest threadgroups.
    """
    cases = []
    dtype = dtype_of(shapes.dtype)
    for kind in shapes.linears:
        few = 3 * max(kind.group, 64)
        for rows, outputs, inputs in (
            (1, 33, few),
            (3, 35, few),
            (7, 33, few),
            (19, 35, few),
            (shapes.rows, kind.outputs, kind.inputs),
        ):
            weights = weights_of(kind, outputs, inputs, dtype)
            cases.append((rows_for(weights, rows, inputs, dtype), weights))
    return cases


def rows_for(weights: Weights, count: int, inputs: int, dtype: mx.Dtype) -> mx.array:
    """Rows in the dtype that a layer with hidden states of `dtype` makes of them."""
    return normal_array(count, count, inputs, dtype=mx.result_type(weights.dtype or dtype, dtype))


class Sized(NamedTuple):
    """A case to time an operation at one of its sizes; `weight` is the number of bytes it reads."""

    size: tuple[int | str, ...]
    weight: int
    case: Case


def matrices(shapes: Shapes) -> list[tuple[LinearShape, int]]:
    """The model's matrices and the bytes that a pass reads of each; narrow ones are left out.

    Those of one size count as one; the most bytes come first.
    """
    reads = Counter[LinearShape]()
    for kind, count in shapes.products:
        size = replace(kind, outputs=min(kind.outputs, MOST_COLUMNS))
        reads[size] += count * kind.outputs * kind.inputs * (kind.bits or 16) // 8
    return [found for found in reads.most_common() if found[0].outputs >= LEAST_COLUMNS]


def product_sizes(shapes: Shapes) -> Iterator[Sized]:
    """Yield the model's matrices with every bucket of rows. Weights are made one at a time."""
    dtype = dtype_of(shapes.dtype)
    for kind, read in matrices(shapes):
        weights = weights_of(kind, kind.outputs, kind.inputs, dtype)
        for rows in BUCKETS:
            x = rows_for(weights, rows, kind.inputs, dtype)
            yield Sized(product_size(x, weights), read, (x, weights))


# The same products, with rows of zeros


def padding_of(kind: LinearShape, shapes: Shapes) -> Padding | None:
    """The padding to try on this machine for some weights; None for those of 32 bits."""
    chip = Chip.of(shapes.architecture)
    if chip is None or (not kind.bits and kind.dtype == "float32"):
        return None
    return padding(chip, kind.outputs, kind.inputs, kind.mode)


def padded_of(kind: LinearShape, shapes: Shapes) -> list[Case]:
    """The fewest and the most rows to pad for some weights; empty if nothing is to be tried."""
    found = padding_of(kind, shapes)
    if found is None:
        return []
    dtype = dtype_of(shapes.dtype)
    weights = weights_of(kind, kind.outputs, kind.inputs, dtype)
    if not weights.fit:
        return []
    ends = found.least, found.width - 1
    return [(rows_for(weights, rows, kind.inputs, dtype), weights, found) for rows in ends]


def padded_cases(shapes: Shapes) -> list[Case]:
    kinds = dict.fromkeys((*shapes.linears, *(kind for kind, _ in matrices(shapes))))
    return [case for kind in kinds for case in padded_of(kind, shapes)]


def padded_sizes(shapes: Shapes) -> Iterator[Sized]:
    """Yield the model's matrices with the fewest rows to pad: with more, padding gains more."""
    for kind, read in matrices(shapes):
        for case in padded_of(kind, shapes)[:1]:
            yield Sized(padded_size(*case), read, case)


# Layers of experts


def split_by_expert(weights: Weights, experts: int) -> Weights:
    """A matrix [E * N, K] as the matrices [E, N, K] of E experts, its bias too."""
    arrays = {name: getattr(weights, name) for name in ("values", "scales", "biases", "bias")}
    parts = {
        name: array.reshape(experts, -1, *array.shape[1:])
        for name, array in arrays.items()
        if array is not None
    }
    return replace(weights, **parts)


def experts_of(kind: ExpertShape, dtype: mx.Dtype) -> Experts:
    def stacked(part: LinearShape) -> Weights:
        weights = weights_of(part, kind.experts * part.outputs, part.inputs, dtype)
        return split_by_expert(weights, kind.experts)

    return Experts(stacked(kind.up), stacked(kind.gate), stacked(kind.down), SwiGLU())


def choices(seed: int, rows: int, taken: int, experts: int) -> mx.array:
    """The experts of each row [rows, taken], each as likely as another."""
    order = mx.argsort(normal_array(seed, rows, experts), axis=-1)
    return mx.take(order, mx.arange(taken), axis=-1)


def expert_cases(shapes: Shapes) -> list[Case]:
    """For each kind of layer: one row, rows with the same experts, many rows, the model's sizes."""
    cases = []
    dtype = dtype_of(shapes.dtype)
    for kind, _ in shapes.experts:
        few = 2 * max(kind.up.group, kind.gate.group, kind.down.group, 64)
        first = {"outputs": few, "inputs": 3 * few}
        small = replace(
            kind,
            up=replace(kind.up, **first),
            gate=replace(kind.gate, **first),
            down=replace(kind.down, outputs=35, inputs=few),
        )
        each = kind.taken, kind.experts
        for shape, indices in (
            (small, choices(1, 1, *each)),
            (small, mx.repeat(choices(2, 1, *each), 7, axis=0)),
            (small, choices(3, 19, *each)),
            (kind, choices(4, shapes.rows, *each)),
        ):
            rows = normal_array(5, len(indices), shape.up.inputs, dtype=dtype)
            cases.append((rows, indices, experts_of(shape, dtype)))
    return cases


def expert_sizes(shapes: Shapes) -> Iterator[Sized]:
    """Yield the model's layers of experts with every bucket of rows that is not MLX's own."""
    dtype = dtype_of(shapes.dtype)
    for kind, count in shapes.experts:
        experts = experts_of(kind, dtype)
        read = count * sum(part.values.nbytes for part in experts.parts)
        for most in EXPERT_BUCKETS:
            rows = normal_array(most, most, kind.up.inputs, dtype=dtype)
            case = rows, choices(most, most, kind.taken, kind.experts), experts
            if not shared_by_mlx(*case[1:]):
                yield Sized(expert_size(*case), read, case)


def other_choices(case: Case, number: int) -> Case:
    """The case with other experts chosen, in place of a copy of all experts."""
    x, indices, experts = case
    rows, taken = indices.shape
    return x, choices(100 + number, rows, taken, len(experts.up.values)), experts


# Attention

FAR = 2 * NEAR  # tokens in the cache when a long context is timed


def attention_case(
    kind: AttentionShape,
    dtype: mx.Dtype,
    parents: Sequence[int],
    context: int,
    start: int = 0,
    window: int = 0,
) -> Case:
    """Rows of a layer type after a context. The cache is NaN after the rows of the block."""
    count = context + len(parents)
    q = normal_array(2, kind.heads, len(parents), kind.head_dim, dtype=dtype)
    sinks = normal_array(1, kind.heads, dtype=dtype) if kind.sinks else None
    spare = mx.full((kind.kv_heads, 4, kind.head_dim), mx.nan, dtype=dtype)
    parts = (normal_array(n, kind.kv_heads, count, kind.head_dim, dtype=dtype) for n in (3, 4))
    keys, values = (mx.concatenate([part, spare], axis=1) for part in parts)
    scores = Scores(kind.head_dim**-0.5, window=window, sinks=sinks)
    return q, keys, values, Rows.of(context, parents, start), scores


def attention_cases(shapes: Shapes) -> list[Case]:
    """For each layer type: one row, trees of the most rows, of a few, and across a split's edge.

    The last is the model's chain. The largest tree has the largest threadgroup, see `Plan`.
    """
    dtype = dtype_of(shapes.dtype)
    chain = range(-1, shapes.rows - 1)
    widest = binary_tree(MAX_ATTENTION_ROWS)
    return [
        attention_case(kind, dtype, parents, context, start, window)
        for kind in shapes.attention
        for parents, context, start, window in (
            ((-1,), 0, 0, 0),
            (widest, 3, 0, kind.window and 7),
            (TREE, 37, 5, 9 if kind.window else 0),
            (TREE, 253, 0, kind.window and 12),
            (chain, shapes.context, 0, kind.window),
        )
    ]


def attention_extremes(shapes: Shapes) -> list[Case]:
    """For each layer type the fewest rows of a verify pass, and the most."""
    dtype = dtype_of(shapes.dtype)
    return [
        attention_case(kind, dtype, parents, shapes.context, 0, kind.window)
        for kind in dict.fromkeys(shapes.attention)
        for parents in (range(-1, 1), binary_tree(MAX_ATTENTION_ROWS))
    ]


def attention_sizes(shapes: Shapes) -> Iterator[Sized]:
    """Yield each layer type with few rows and with the model's, after a short and a long context.

    Layers with a window get no long one: they would see no more of it.
    """
    dtype = dtype_of(shapes.dtype)
    for kind in dict.fromkeys(shapes.attention):
        for count in sorted({min(FEW_ROWS, shapes.rows), shapes.rows}):
            for context in (shapes.context, *(() if kind.window else (FAR,))):
                case = attention_case(kind, dtype, range(-1, count - 1), context, 0, kind.window)
                seen = min(context, kind.window or context)
                read = 2 * seen * kind.kv_heads * kind.head_dim * dtype.size
                yield Sized(attention_size(*case), read, case)
