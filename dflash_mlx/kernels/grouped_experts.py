"""The experts of a few rows: each expert's weights are read once for all rows that chose it.

MLX reads them again for each row, unless there are four rows for each expert or more. Here the rows
of an expert are multiplied together, as vectors in float32, and need not be sorted first. The bits
of a row depend neither on the other rows nor on their number.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import mlx.core as mx
from mlx_lm.models.switch_layers import SwiGLU

from .dispatch import Op
from .samples import Case, dtype_of, normal_array
from .shapes import ExpertShape, LinearShape, Shapes
from .small_m_qmm import FLOATS, INPUTS, VECTORS, Weights, weights_of
from .source import Launcher, Source, pad_small

BUCKETS = (2, 4, 8, 16, 32)  # the most rows of each bucket; one time is measured per bucket
SORTED_PAIRS = 64  # of rows and experts, which mlx-lm sorts; then MLX shares reads
MLX_PAIRS = 4  # from so many pairs an expert on
ROWS = VECTORS.rows[-1]  # of an expert that a threadgroup multiplies at once
HEADERS = ("common.h", "lanes.h", "small_m_qmm.h", "vectors.h", "grouped_experts.h")
SOURCE = Source("grouped_experts", (INPUTS[0], "indices", *INPUTS[1:]), ("out",), HEADERS)


@dataclass(frozen=True)
class Experts:
    """The experts of a layer as mlx-lm's SwitchGLU has them: each part is of E matrices [E, N, K].

    `activation` takes the products with `up` and with `gate`, and has no arrays.
    """

    up: Weights
    gate: Weights
    down: Weights
    activation: Callable[[mx.array, mx.array], mx.array]

    @property
    def parts(self) -> tuple[Weights, Weights, Weights]:
        return self.up, self.gate, self.down

    @cached_property
    def fit(self) -> bool:
        return all(part.values.ndim == 3 and part.known for part in self.parts)

    @cached_property
    def form(self) -> tuple[int | str, ...]:
        """What the speed depends on: experts, the width of each, and the weights' forms."""
        experts, width, _ = self.up.values.shape
        return experts, width, *(part.form for part in self.parts)


def reference(x: mx.array, indices: mx.array, experts: Experts) -> mx.array:
    """x [..., H] and each row's experts [..., T] -> [..., T, H]; each row is computed alone."""
    rows = x.reshape(-1, x.shape[-1])
    chosen = indices.reshape(-1, indices.shape[-1])
    out = [layer(rows[i : i + 1], chosen[i : i + 1], experts) for i in range(len(rows))]
    return mx.concatenate(out).reshape(*indices.shape, -1)


def layer(x: mx.array, indices: mx.array, experts: Experts) -> mx.array:
    """x [M, H], indices [M, T] -> [M, T, H], as mlx-lm's SwitchGLU computes few rows."""
    rows = x[:, None, None]
    up, gate = (gathered(rows, indices, part) for part in (experts.up, experts.gate))
    return gathered(experts.activation(up, gate), indices, experts.down).squeeze(-2)


def gathered(x: mx.array, indices: mx.array, weights: Weights) -> mx.array:
    """x [M, T or 1, 1, K], indices [M, T] -> [M, T, 1, N], as mlx-lm's layers compute it."""
    w = weights
    if w.scales is None:
        out = mx.gather_mm(x, w.values.swapaxes(-1, -2), rhs_indices=indices)
    else:
        packing = {"group_size": w.group, "bits": w.bits, "mode": w.mode}
        out = mx.gather_qmm(x, w.values, w.scales, w.biases, rhs_indices=indices, **packing)
    return out if w.bias is None else out + w.bias[indices][..., None, :]


def launch(launcher: Launcher, x: mx.array, indices: mx.array, experts: Experts) -> mx.array:
    """As `reference`, in three dispatches and the activation; sums are rounded once."""
    pairs = indices.size
    # Flat, a slice of all experts in order is copied once, and not by each launch.
    chosen = pad_small(indices.reshape(-1).reshape(-1, indices.shape[-1]))
    rows = x.reshape(-1, x.shape[-1])
    up, gate = (product(launcher, rows, chosen, pairs, part) for part in (experts.up, experts.gate))
    out = product(launcher, experts.activation(up, gate), chosen, pairs, experts.down)
    return out.reshape(*indices.shape, -1)


def product(
    launcher: Launcher, x: mx.array, indices: mx.array, pairs: int, weights: Weights
) -> mx.array:
    """x [R, K] times the matrix of the expert of each pair: [pairs, N].

    Row r is that of `pairs` / R pairs from r * `pairs` / R on. `indices` may have more elements.
    """
    columns = weights.values.shape[-2]
    dtype = mx.result_type(weights.dtype or x.dtype, x.dtype)
    return launcher(
        SOURCE,
        (x.astype(dtype), indices, *weights.inputs),
        template=(("OutT", dtype), ("Rows", ROWS), *weights.arguments),
        grid=(-(-columns // VECTORS.columns) * VECTORS.threads, pairs, 1),
        threadgroup=(VECTORS.threads, 1, 1),
        output_shapes=((pairs, columns),),
        output_dtypes=(dtype,),
    )[0]


def fits(x: mx.array, indices: mx.array, experts: Experts) -> bool:
    """Whether the kernel supports the rows and the weights, which are those of `small_m_qmm`."""
    return experts.fit and x.ndim > 1 and x.size > 0 and x.dtype in FLOATS


def shared_by_mlx(indices: mx.array, experts: Experts) -> bool:
    """Whether stock MLX itself reads an expert once for several rows: `GatherQMM::eval_gpu`."""
    return indices.size >= SORTED_PAIRS and indices.size >= MLX_PAIRS * len(experts.up.values)


def size(x: mx.array, indices: mx.array, experts: Experts) -> tuple[int | str, ...]:
    """The weights' form, a row's experts, and the bucket of the rows (0 is beyond all)."""
    taken = indices.shape[-1]
    bucket = next((most for most in BUCKETS if indices.size <= most * taken), 0)
    return *experts.form, x.shape[-1], taken, bucket


OP = Op("grouped_experts", reference, launch, fits, size)


def cases(shapes: Shapes) -> list[Case]:
    """For each kind of layer: one row, rows with the same experts, many rows, the model's sizes."""
    found = []
    dtype = dtype_of(shapes.dtype)
    for kind in shapes.experts:
        few = 2 * max(kind.up.group, kind.gate.group, kind.down.group, 64)
        up, gate = (replace(part, outputs=few, inputs=3 * few) for part in (kind.up, kind.gate))
        down = replace(kind.down, outputs=35, inputs=few)
        small = replace(kind, up=up, gate=gate, down=down)
        for shape, indices in (
            (small, choices(1, 1, kind)),
            (small, mx.repeat(choices(2, 1, kind), 7, axis=0)),
            (small, choices(3, 19, kind)),
            (kind, choices(4, shapes.rows, kind)),
        ):
            rows = normal_array(5, len(indices), shape.up.inputs, dtype=dtype)
            found.append((rows, indices, experts_of(shape, dtype)))
    return found


def sizes(shapes: Shapes) -> Iterator[Case]:
    """Yield the model's layers of experts with every bucket of rows that is not MLX's own."""
    dtype = dtype_of(shapes.dtype)
    for kind in shapes.experts:
        experts = experts_of(kind, dtype)
        for most in BUCKETS:
            rows = normal_array(most, most, kind.up.inputs, dtype=dtype)
            indices = choices(most, most, kind)
            if not shared_by_mlx(indices, experts):
                yield rows, indices, experts


def experts_of(kind: ExpertShape, dtype: mx.Dtype) -> Experts:
    def stacked(part: LinearShape) -> Weights:
        weights = weights_of(part, kind.experts * part.outputs, part.inputs, dtype)
        return split_by_expert(weights, kind.experts)

    return Experts(stacked(kind.up), stacked(kind.gate), stacked(kind.down), SwiGLU())


def split_by_expert(weights: Weights, experts: int) -> Weights:
    """A matrix [E * N, K] as the matrices [E, N, K] of E experts, its bias too."""
    parts = {
        name: array.reshape(experts, -1, *array.shape[1:])
        for name in ("values", "scales", "biases", "bias")
        if (array := getattr(weights, name)) is not None
    }
    return replace(weights, **parts)


def choices(seed: int, rows: int, kind: ExpertShape) -> mx.array:
    order = mx.argsort(normal_array(seed, rows, kind.experts), axis=-1)
    return order[:, : kind.taken]


def other_choices(case: Case, number: int) -> Case:
    """The case with other experts chosen: copies of all experts would fill the memory."""
    x, indices, experts = case
    return x, (indices + number) % len(experts.up.values), experts
