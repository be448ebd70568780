"""Product of a few rows with a weight matrix, quantised or not, that reads each weight once.

MLX reads the weights again for every few rows; here up to 16 rows share one read. The bits of a row
do not depend on the number of rows M: each row's sum has one order along K. The kernel uses float32
fused multiply-adds and sums over 8 lanes. It does not use `simdgroup_matrix`: its order of sums is
not documented, it always computes 8 rows, and chips before the M5 have no faster unit for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import mlx.core as mx

from .dispatch import Op
from .source import Launcher, Source

THREADS = 128  # of a threadgroup
COLUMNS = 32  # of a threadgroup
ROW_COUNTS = (1, 2, 4, 8, 12, 16)  # rows of one threadgroup; more rows take several threadgroups
GROUP_SIZES = (32, 64, 128)
BUCKETS = (2, 4, 8, 12, 16, 32)  # rows up to which the speed is one
LEAST_COLUMNS = 512  # fewer threadgroups than cores of a large chip: not worth a trial
MOST_COLUMNS = 8192  # the speed of wider matrices is the same for each column
FLOATS = (mx.float32, mx.bfloat16, mx.float16)
SOURCE = Source(
    "small_m_qmm",
    inputs=("x", "weight", "scales", "biases", "bias"),
    outputs=("out",),
    headers=("lanes.h", "small_m_qmm.h"),
)


@dataclass(frozen=True)
class Weights:
    """A weight matrix [N, K] in the format of MLX's modules, and the bias [N] of a linear layer.

    Without `scales` `values` are the weights. With `scales` they are packed as by
    `mx.quantize(..., group, bits, mode)`, uint32 [N, K * bits / 32]; `scales` and `biases` (if the
    mode has them) are [N, K / group].
    """

    values: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    bias: mx.array | None = None
    group: int = 0
    bits: int = 0
    mode: str = "affine"

    @cached_property
    def dtype(self) -> mx.Dtype | None:
        """The widest float among the weights (their scales, if packed) and the bias, if any is."""
        parts = (self.values if self.scales is None else self.scales, self.bias)
        floats = [
            part.dtype
            for part in parts
            if part is not None and mx.issubdtype(part.dtype, mx.floating)
        ]
        return reduce(mx.result_type, floats) if floats else None

    @cached_property
    def fit(self) -> bool:
        """Whether the kernel supports them, see `fits`."""
        if self.values.ndim != 2 or (self.bias is not None and self.bias.dtype not in FLOATS):
            return False
        if self.scales is None:
            return self.values.dtype in FLOATS and self.values.shape[1] % 4 == 0
        if self.mode == "mxfp4":
            return (self.group, self.bits, self.biases) == (32, 4, None)
        return (
            self.mode == "affine"
            and self.group in GROUP_SIZES
            and self.bits in (4, 5, 6, 8)
            and self.biases is not None
            and self.scales.dtype in FLOATS
            and self.biases.dtype in FLOATS
        )

    @cached_property
    def layout(self) -> "Layout":
        """What the kernel is given of them."""
        return Layout(self)


class Layout:
    """What the kernel is given of some weights, the same in every launch.

    `inputs`: the buffers after the rows. `columns`: N.
    """

    def __init__(self, weights: Weights):
        w = weights
        packed = w.scales is not None
        values = w.values.view(mx.uint16) if packed and w.bits == 5 else w.values
        unused = w.scales if w.scales is not None else values  # in place of absent inputs
        self.inputs = (
            values,
            unused,
            unused if w.biases is None else w.biases,
            unused if w.bias is None else w.bias,
        )
        self.columns = len(w.values)
        self._arguments = (
            ("Bits", w.bits if packed else 0),
            ("Group", w.group if packed else GROUP_SIZES[0]),
            ("Mxfp4", packed and w.mode == "mxfp4"),
            ("Biased", w.bias is not None),
        )
        self._launches: dict[tuple[int, mx.Dtype], tuple[Sequence[Any], tuple[int, int, int]]] = {}

    def launch(self, rows: int, dtype: mx.Dtype) -> tuple[Sequence[Any], tuple[int, int, int]]:
        """The template arguments and the grid for so many rows of a dtype."""
        key = rows, dtype
        if key not in self._launches:
            count = next((count for count in ROW_COUNTS if count >= rows), ROW_COUNTS[-1])
            template = (("OutT", dtype), ("Rows", count), *self._arguments)
            grid = (-(-self.columns // COLUMNS) * THREADS, -(-rows // count), 1)
            self._launches[key] = template, grid
        return self._launches[key]


def reference(x: mx.array, weights: Weights) -> mx.array:
    """x [..., K] -> [..., N] in the dtype of x; each row is computed alone."""
    flat = x.reshape(-1, x.shape[-1])
    out = mx.concatenate([product(row, weights) for row in mx.split(flat, len(flat))])
    return out.reshape(*x.shape[:-1], -1)


def product(x: mx.array, weights: Weights) -> mx.array:
    """x [M, K] -> [M, N] in the dtype of x; all rows at once, as MLX's modules compute it."""
    w = weights
    if w.scales is None:
        out = x @ w.values.T
    else:
        out = mx.quantized_matmul(
            x, w.values, w.scales, w.biases, True, w.group or None, w.bits or None, w.mode
        )
    return (out if w.bias is None else out + w.bias).astype(x.dtype)


def launch(launcher: Launcher, x: mx.array, weights: Weights) -> mx.array:
    """As `reference`, in one dispatch; weights are read once for 16 rows, and sums rounded once."""
    layout, dtype, shape = weights.layout, x.dtype, x.shape
    template, grid = layout.launch(x.size // shape[-1], dtype)
    return launcher(
        SOURCE,
        (x, *layout.inputs),
        template=template,
        grid=grid,
        threadgroup=(THREADS, 1, 1),
        output_shapes=((*shape[:-1], layout.columns),),
        output_dtypes=(dtype,),
    )[0]


def fits(x: mx.array, weights: Weights) -> bool:
    """Whether the kernel supports the rows and the weights.

    Affine with 4, 5, 6 or 8 bits, "mxfp4", or floats with K a multiple of 4.
    """
    return weights.fit and x.ndim > 1 and x.size > 0 and x.dtype in FLOATS


def size(x: mx.array, weights: Weights) -> tuple[int, ...]:
    """What the speed depends on: columns, inputs, bits, and the most rows of the bucket."""
    rows = next((most for most in BUCKETS if len(x) <= most), BUCKETS[-1])
    return min(len(weights.values), MOST_COLUMNS), x.shape[1], weights.bits, rows


OP = Op("small_m_qmm", reference, launch, fits, size)
