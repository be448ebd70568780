"""The product of a few rows with a matrix of weights, packed or not, each weight read once.

MLX reads the weights again for every few rows; here up to 16 share one reading. No row's bits
depend on how many rows there are: each row's sum has one order along K, whatever M, and rows that
are not there cost nothing but time. The kernel is plain float32 fused multiply-adds and sums over
8 lanes: of `simdgroup_matrix` no order of sums is documented, and on chips before the M5 it has no
arithmetic of its own to be faster by, while a single row would pay for eight. Knows no modules.
"""

from dataclasses import dataclass

import mlx.core as mx

from .dispatch import Op
from .source import Launcher, Source

THREADS = 128  # of a threadgroup
COLUMNS = 32  # of a threadgroup
SIZES = (1, 2, 4, 8, 12, 16)  # rows that a kernel is made for; more go in turns of the last
GROUPS = (32, 64, 128)
FLOATS = (mx.float32, mx.bfloat16, mx.float16)
SOURCE = Source(
    "small_m_qmm",
    inputs=("x", "weight", "scales", "biases", "bias"),
    outputs=("out",),
    headers=("lanes.h", "small_m_qmm.h"),
)


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix [N, K], as the modules of MLX hold it, and what is added to the product.

    Without `scales` `values` are the weights themselves. With them they are packed as by
    `mx.quantize(..., group, bits, mode)`, uint32 [N, K * bits / 32]; scales, and biases where the
    mode has them, are [N, K / group]. `bias` is [N].
    """

    values: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    bias: mx.array | None = None
    group: int = 0
    bits: int = 0
    mode: str = "affine"


def reference(x: mx.array, weights: Weights) -> mx.array:
    """Rows x [M, K] -> [M, N] of x's dtype, each row as if it was alone."""
    return mx.concatenate([product(row, weights) for row in mx.split(x, len(x))])


def product(x: mx.array, weights: Weights) -> mx.array:
    """All rows x [M, K] at once, as MLX's modules do it -> [M, N] of x's dtype."""
    w = weights
    if w.scales is None:
        out = x @ w.values.T
    else:
        out = mx.quantized_matmul(
            x, w.values, w.scales, w.biases, True, w.group or None, w.bits or None, w.mode
        )
    return (out if w.bias is None else out + w.bias).astype(x.dtype)


def launch(launcher: Launcher, x: mx.array, weights: Weights) -> mx.array:
    """As `reference`, in one dispatch, rounded once; weights are read once for 16 rows."""
    w = weights
    rows, columns = len(x), len(w.values)
    size = next((size for size in SIZES if size >= rows), SIZES[-1])
    packed = w.scales is not None
    values = w.values.view(mx.uint16) if packed and w.bits == 5 else w.values
    some = w.scales if w.scales is not None else values
    (out,) = launcher(
        SOURCE,
        [
            x,
            values,
            some,
            some if w.biases is None else w.biases,
            some if w.bias is None else w.bias,
        ],
        template=[
            ("OutT", x.dtype),
            ("Rows", size),
            ("Bits", w.bits if packed else 0),
            ("Group", w.group if packed else GROUPS[0]),
            ("Mxfp4", packed and w.mode == "mxfp4"),
            ("Biased", w.bias is not None),
        ],
        grid=(-(-columns // COLUMNS) * THREADS, -(-rows // size), 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows, columns)],
        output_dtypes=[x.dtype],
    )
    return out


def fits(x: mx.array, weights: Weights) -> bool:
    """Affine weights of 4, 5, 6 or 8 bits, "mxfp4", or floats with K a multiple of 4."""
    w = weights
    if x.ndim != 2 or not len(x) or w.values.ndim != 2 or x.dtype not in FLOATS:
        return False
    if w.bias is not None and w.bias.dtype not in FLOATS:
        return False
    if w.scales is None:
        return w.values.dtype in FLOATS and x.shape[1] % 4 == 0
    if w.mode == "mxfp4":
        return (w.group, w.bits, w.biases) == (32, 4, None)
    return (
        w.mode == "affine"
        and w.group in GROUPS
        and w.bits in (4, 5, 6, 8)
        and w.biases is not None
        and w.scales.dtype in FLOATS
        and w.biases.dtype in FLOATS
    )


OP = Op("small_m_qmm", reference, launch, fits)
