"""Product of a few rows with a weight matrix, quantised or not, that reads each weight once.

MLX reads the weights again for every few rows; here up to 16 rows share one read. There are two
kernels, both in float32. Up to 4 rows are multiplied as vectors: reading the weights is most of the
work. More rows are multiplied by 8x8 matrices of a simdgroup, with fewer loads for each product.
Where the bits of a row must not depend on the number of rows (`launch_exact`) all rows go through
matrices. The order of their sums is not documented, so every machine checks it before exact mode
uses them. `metal_kernels/README.md` has the arithmetic.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import mlx.core as mx

from .dispatch import Op
from .samples import Case, dtype_of, normal_array
from .shapes import LinearShape, Shapes
from .source import Launcher, Source

GROUP_SIZES = (32, 64, 128)
BUCKETS = (2, 4, 8, 12, 16)  # the most rows of each bucket; one time is measured per bucket
LEAST_COLUMNS = 512  # narrower matrices have fewer threadgroups than a large chip has cores
# Wider matrices take the same time per column. Up to 8192 columns MLX splits the sums of up to 32
# rows, and on an M5 uses its matrix units only beyond (`qmm_splitk` in metal/quantized.cpp).
MOST_COLUMNS = 8448
FLOATS = (mx.float32, mx.bfloat16, mx.float16)
INPUTS = ("x", "weight", "scales", "biases", "bias")
HEADERS = ("common.h", "lanes.h", "small_m_qmm.h")
ROWS = Source("small_m_qmm_rows", INPUTS, ("out",), (*HEADERS, "vectors.h"))
MATRIX = Source("small_m_qmm_matrix", INPUTS, ("out",), HEADERS)


@dataclass(frozen=True, slots=True)
class Body:
    """One of the kernels: the rows that a threadgroup may have, its columns and its threads."""

    source: Source
    rows: tuple[int, ...]
    columns: int
    threads: int


VECTORS = Body(ROWS, (2, 4), 16, 128)
MATRICES = Body(MATRIX, (8, 16), 32, 256)


@dataclass(frozen=True)
class Weights:
    """A weight matrix [N, K] in the format of MLX's modules, and the bias [N] of a linear layer.

    Or matrices [E, N, K] and biases [E, N], one for each expert.

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
        """The widest float of the weights (their scales, if packed) and the bias; None if none."""
        parts = (self.values if self.scales is None else self.scales, self.bias)
        floats = [
            part.dtype
            for part in parts
            if part is not None and mx.issubdtype(part.dtype, mx.floating)
        ]
        return reduce(mx.result_type, floats) if floats else None

    @cached_property
    def fit(self) -> bool:
        return self.values.ndim == 2 and self.known

    @cached_property
    def known(self) -> bool:
        """Whether the kernels know their format, of one matrix or of several."""
        if self.bias is not None and self.bias.dtype not in FLOATS:
            return False
        if self.scales is None:
            return self.values.dtype in FLOATS and self.values.shape[-1] % 4 == 0
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
    def form(self) -> str:
        """All that a kernel is compiled for, in words such as "4-bit affine in 64s, bfloat16"."""
        arrays = self.values if self.scales is None else self.scales
        packing = f"{self.bits}-bit {self.mode} in {self.group}s, " if self.bits else ""
        dtype = str(arrays.dtype).rpartition(".")[2]
        return f"{packing}{dtype}{'' if self.bias is None else ', bias'}"

    @property
    def inputs(self) -> tuple[mx.array, ...]:
        """The buffers of a kernel after the rows; in place of absent ones there is any other."""
        packed = self.scales is not None
        values = self.values.view(mx.uint16) if packed and self.bits == 5 else self.values
        unused = values if self.scales is None else self.scales
        others = self.scales, self.biases, self.bias
        return values, *(unused if part is None else part for part in others)

    @property
    def arguments(self) -> tuple[tuple[str, int | bool], ...]:
        """Those of a kernel's template that depend on the weights only."""
        packed = self.scales is not None
        return (
            ("Bits", self.bits if packed else 0),
            ("Group", self.group if packed else GROUP_SIZES[0]),
            ("Mxfp4", packed and self.mode == "mxfp4"),
            ("Biased", self.bias is not None),
        )


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


def launch(launcher: Launcher, x: mx.array, weights: Weights, *, exact: bool = False) -> mx.array:
    """As `reference`, in one dispatch; weights are read once for 16 rows, and sums rounded once.

    exact: in the same way for every number of rows.
    """
    rows = x.size // x.shape[-1]
    columns = weights.values.shape[-2]
    body = MATRICES if exact or rows > VECTORS.rows[-1] else VECTORS
    count = next((count for count in body.rows if count >= rows), body.rows[-1])
    return launcher(
        body.source,
        (x, *weights.inputs),
        template=(("OutT", x.dtype), ("Rows", count), *weights.arguments),
        grid=(-(-columns // body.columns) * body.threads, -(-rows // count), 1),
        threadgroup=(body.threads, 1, 1),
        output_shapes=((*x.shape[:-1], columns),),
        output_dtypes=(x.dtype,),
    )[0]


def launch_exact(launcher: Launcher, x: mx.array, weights: Weights) -> mx.array:
    """As `launch`; the bits of a row do not depend on the number of rows."""
    return launch(launcher, x, weights, exact=True)


def fits(x: mx.array, weights: Weights) -> bool:
    """Whether the kernel supports the rows and the weights.

    Affine with 4, 5, 6 or 8 bits, "mxfp4", or floats with K a multiple of 4.
    """
    return weights.fit and x.ndim > 1 and x.size > 0 and x.dtype in FLOATS


def matrix_size(x: mx.array, weights: Weights) -> tuple[int | str, ...]:
    """What the speed depends on apart from the rows: columns, inputs, and the weights' form."""
    return min(len(weights.values), MOST_COLUMNS), x.shape[-1], weights.form


def size(x: mx.array, weights: Weights) -> tuple[int | str, ...]:
    """What the speed depends on: that of the matrix, and the bucket of the rows; 0 is beyond all.

    The kernel would read the weights again for more rows.
    """
    rows = x.size // x.shape[-1]
    return *matrix_size(x, weights), next((most for most in BUCKETS if rows <= most), 0)


OP = Op("small_m_qmm", reference, launch, fits, size, launch_exact)


def cases(shapes: Shapes) -> list[Case]:
    """For each form of weights one case per size of a threadgroup, then the most frequent matrix.

    19 rows need two of the largest threadgroups. Of a wide matrix, such as a head, there is a part:
    a random one in float32 would take gigabytes.
    """
    found = []
    by_count = sorted(shapes.products, key=lambda product: product[1])
    forms = {replace(kind, outputs=0, inputs=0): kind for kind, _ in by_count}
    for kind in forms.values():
        few = 3 * max(kind.group, 64)
        for rows, outputs, inputs in (
            (1, 33, few),
            (3, 35, few),
            (7, 33, few),
            (19, 35, few),
            (shapes.rows, min(kind.outputs, MOST_COLUMNS), kind.inputs),
        ):
            weights = weights_of(kind, outputs, inputs, dtype_of(shapes.dtype))
            found.append((rows_for(weights, rows, inputs, shapes), weights))
    return found


def sizes(shapes: Shapes) -> Iterator[Case]:
    """Yield the model's matrices with every bucket of rows. Weights are made one at a time."""
    for kind in matrices(shapes):
        weights = weights_of(kind, kind.outputs, kind.inputs, dtype_of(shapes.dtype))
        for rows in BUCKETS:
            yield rows_for(weights, rows, kind.inputs, shapes), weights


def matrices(shapes: Shapes) -> list[LinearShape]:
    """The model's matrices, the most bytes first; without narrow ones, wide ones as one size."""
    reads = Counter[LinearShape]()
    for kind, count in shapes.products:
        size = replace(kind, outputs=min(kind.outputs, MOST_COLUMNS))
        reads[size] += count * kind.outputs * kind.inputs * (kind.bits or 16)
    return [size for size, _ in reads.most_common() if size.outputs >= LEAST_COLUMNS]


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


def rows_for(weights: Weights, count: int, inputs: int, shapes: Shapes) -> mx.array:
    """Rows in the dtype that a layer with these weights makes of hidden states."""
    dtype = dtype_of(shapes.dtype)
    return normal_array(count, count, inputs, dtype=mx.result_type(weights.dtype or dtype, dtype))
