"""Random matrices as MLX packs them, experts of them, and the product that they should give."""

import mlx.core as mx
from mlx_lm.models.switch_layers import SwiGLU

from dflash_mlx.kernels.grouped_experts import Experts, split_by_expert
from dflash_mlx.kernels.small_m_qmm import Weights

# Group, bits and mode of each way to hold weights; the first are those that are not packed.
KINDS = (
    (0, 0, "affine"),
    (64, 4, "affine"),
    (32, 5, "affine"),
    (64, 6, "affine"),
    (128, 8, "affine"),
    (32, 4, "mxfp4"),
)
AFFINE = tuple((group, bits, "affine") for group in (32, 64, 128) for bits in (4, 5, 6, 8))


def rows_of(count: int, k: int, dtype: mx.Dtype = mx.float32, seed: int = 7) -> mx.array:
    return mx.random.normal((count, k), key=mx.random.key(seed)).astype(dtype)


def weights_of(
    n: int,
    k: int,
    kind: tuple[int, int, str],
    dtype: mx.Dtype = mx.float32,
    biased: bool = False,
    seed: int = 3,
) -> Weights:
    """A random matrix [N, K] of a kind, whose products with `rows_of` are about 1."""
    group, bits, mode = kind
    seeds = mx.random.split(mx.random.key(seed), 2)
    matrix = (mx.random.normal((n, k), key=seeds[0]) / k**0.5).astype(dtype)
    bias = mx.random.normal((n,), key=seeds[1]).astype(dtype) if biased else None
    if not bits:
        return Weights(matrix, bias=bias)
    values, scales, *biases = mx.quantize(matrix, group, bits, mode)
    return Weights(values, scales, biases[0] if biases else None, bias, group, bits, mode)


def stacked(
    experts: int,
    n: int,
    k: int,
    kind: tuple[int, int, str],
    dtype: mx.Dtype = mx.float32,
    biased: bool = False,
    seed: int = 3,
) -> Weights:
    return split_by_expert(weights_of(experts * n, k, kind, dtype, biased, seed), experts)


def experts_of(
    count: int,
    sizes: tuple[int, int, int],
    kind: tuple[int, int, str],
    dtype: mx.Dtype = mx.float32,
    biased: bool = False,
) -> Experts:
    hidden, width, outputs = sizes
    up, gate = (stacked(count, width, hidden, kind, dtype, biased, seed) for seed in (3, 4))
    return Experts(up, gate, stacked(count, outputs, width, kind, dtype, biased, 5), SwiGLU())


def chosen(rows: int, taken: int, experts: int, seed: int = 1) -> mx.array:
    """Each row's experts [rows, taken], which differ, as a router gives them."""
    scores = mx.random.normal((rows, experts), key=mx.random.key(seed))
    return mx.argpartition(scores, kth=-taken, axis=-1)[..., -taken:]


def truth(x: mx.array, weights: Weights) -> mx.array:
    """The product in float32 of `mx.dequantize`d weights, not rounded to x's dtype."""
    w = weights
    matrix = w.values
    if w.scales is not None:
        scales = w.scales if w.mode == "mxfp4" else w.scales.astype(mx.float32)
        biases = None if w.biases is None else w.biases.astype(mx.float32)
        matrix = mx.dequantize(w.values, scales, biases, w.group, w.bits, w.mode, dtype=mx.float32)
    out = x.astype(mx.float32) @ matrix.astype(mx.float32).T
    return out if w.bias is None else out + w.bias.astype(mx.float32)
