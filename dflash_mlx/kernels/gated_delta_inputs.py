"""From the projections of a Gated DeltaNet layer's rows to what its recurrence reads.

Convolution, SiLU, the norms of queries and keys, gates. Rows are a chain or a tree; the recurrence
is `gated_delta_tape` or `gated_delta_tree`.
"""

from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn
from mlx_lm.models.gated_delta import normalize_qk

from .dispatch import Op
from .gated_delta_tape import FLOATS
from .samples import TREE, Case, dtype_of, normal_array
from .shapes import Shapes
from .source import DEVICE_MEMORY_SIZE, Launcher, Source, recorded

LANES = 32  # per head of a row
THREADS = 128
SOURCE = Source(
    "gated_delta_inputs",
    inputs=("mixed", "a", "b", "window", "weight", "A_log", "dt_bias", "places"),
    outputs=("q", "k", "v", "g", "beta", "inputs"),
    headers=("common.h", "lanes.h"),
)


class Inputs(NamedTuple):
    """What the recurrence reads, and the convolution's inputs [W + T, C], to commit some rows.

    `q` and `k` [T, Hk, Dk], normed; `v` [T, Hv, Dv]; `g` float32 [T, Hv]; `beta` [T, Hv].
    """

    q: mx.array
    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array
    inputs: mx.array


def reference(
    mixed: mx.array,
    a: mx.array,
    b: mx.array,
    window: mx.array,
    weight: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    places: mx.array,
    heads: int,
    dim: int,
) -> Inputs:
    """The inputs of T rows. Each row is summed in the same order, whatever T is.

    `mixed`: the projected queries, keys and values [T, C]. `a` and `b`: [T, Hv]. `window`: the
    inputs [W, C] before the rows. `weight` [C, W + 1, 1], `A_log` and `dt_bias` [Hv]: the layer's.
    `places`: int32 [T or more, W + 1]; row t of the convolution reads these rows of the window and
    `mixed`, joined. `heads` and `dim`: Hk and Dk.
    """
    inputs = mx.concatenate([window, mixed])
    taps = weight[..., 0].T.astype(mx.float32)  # [W + 1, C]
    rows = inputs[places[: len(mixed)]].astype(mx.float32)
    total = rows[:, 0] * taps[0]
    for tap in range(1, len(taps)):
        total = total + rows[:, tap] * taps[tap]
    total = total.astype(inputs.dtype)
    q, k, v = split_heads(total * sigmoid(total), heads, dim, a.shape[1])
    q, k = normalize_qk(q, k, inv_scale=dim**-0.5, eps=1e-6)
    step = nn.softplus((a + dt_bias).astype(mx.float32))  # mlx-lm rounds it to the dtype of a
    g = mx.exp(-mx.exp(A_log.astype(mx.float32)) * step)
    return Inputs(q, k, v, g, sigmoid(b), inputs)


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + e^-x), rounded once; MLX's is computed in the dtype of x."""
    return mx.sigmoid(x.astype(mx.float32)).astype(x.dtype)


def split_heads(
    convolved: mx.array, heads: int, dim: int, value_heads: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Queries, keys and values [..., heads, d] of the convolution's output [..., C]."""
    q, k, v = mx.split(convolved, [heads * dim, 2 * heads * dim], axis=-1)
    return (
        q.reshape(*q.shape[:-1], heads, dim),
        k.reshape(*k.shape[:-1], heads, dim),
        v.reshape(*v.shape[:-1], value_heads, -1),
    )


def launch(launcher: Launcher, *args: Any) -> Inputs:
    """As `reference`, in one dispatch. The bits of a row do not depend on the number of rows."""
    return Inputs(*recorded(launcher, dispatch, len(args[0]))(*args))


def dispatch(launcher: Launcher, *args: Any) -> list[mx.array]:
    """`launch`, recorded once for each number of rows."""
    *arrays, heads, dim = args
    mixed, a, b, window, _, _, dt_bias, _ = arrays
    rows, channels = mixed.shape
    value_heads = a.shape[1]
    value_dim = (channels - 2 * heads * dim) // value_heads
    return launcher(
        SOURCE,
        arrays,
        template=[
            ("InT", mixed.dtype),
            ("SumT", mx.result_type(a, dt_bias)),
            ("BetaT", b.dtype),
            ("Hk", heads),
            ("Hv", value_heads),
            ("Dk", dim),
            ("Dv", value_dim),
            ("K", len(window) + 1),
        ],
        grid=(LANES * (2 * heads + value_heads), rows, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[
            (rows, heads, dim),
            (rows, heads, dim),
            (rows, value_heads, value_dim),
            a.shape,
            b.shape,
            (len(window) + rows, channels),
        ],
        output_dtypes=[*[mixed.dtype] * 3, mx.float32, b.dtype, mixed.dtype],
    )


def fits(*args: Any) -> bool:
    """Whether the kernel supports the inputs: one dtype of the convolution, at least 8 places."""
    mixed, a, b, window, weight, A_log, dt_bias, places, *_ = args
    return (
        mixed.dtype == window.dtype == weight.dtype
        and places.dtype == mx.int32
        and places.size >= DEVICE_MEMORY_SIZE
        and all(part.dtype in FLOATS for part in (mixed, a, b, A_log, dt_bias))
    )


OP = Op("gated_delta_inputs", reference, launch, fits)


def cases(shapes: Shapes) -> list[Case]:
    """One row of a chain, a tree, and the model's chain."""
    sizes = shapes.delta
    if sizes is None:
        return []
    heads = sizes.value_heads
    width = sizes.window + 1
    chain = [[*range(row, row + width)] for row in range(max(shapes.rows, 8))]
    tree = [chain[0]]
    for row, parent in enumerate(TREE[1:], 1):
        tree.append([*tree[parent][1:], width - 1 + row])
    decay, bias = (
        normal_array(seed, heads, dtype=dtype_of(name))
        for seed, name in ((5, sizes.decay), (6, sizes.bias))
    )
    found = []
    for places, rows in ((chain, 1), (tree, len(tree)), (chain, shapes.rows)):
        projected = (rows, sizes.channels), (rows, heads), (rows, heads)
        convolution = (sizes.window, sizes.channels), (sizes.channels, width, 1)
        fed = [
            normal_array(seed, *size, dtype=dtype_of(shapes.dtype))
            for seed, size in enumerate(projected + convolution)
        ]
        at = mx.array(places, mx.int32)
        found.append((*fed, decay, bias, at, sizes.key_heads, sizes.key_dim))
    return found
