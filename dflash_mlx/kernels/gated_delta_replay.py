"""Commit of the accepted rows of Gated DeltaNet layers: states and convolution windows.

Replays the tape of `gated_delta_tape` or `gated_delta_tree` from the states before the verify pass:
S <- g S + delta k for each accepted row. Takes a stack of layers of equal shapes, or a single one.
"""

import mlx.core as mx

from .dispatch import Op
from .gated_delta_tape import FLOATS, HEADERS, random_rows, template
from .samples import Case, dtype_of, normal_array
from .shapes import Shapes
from .source import Launcher, Source, pad_small, recorded

THREADS = 256
SOURCE = Source(
    "gated_delta_replay",
    inputs=("state", "delta", "k", "g", "path", "count", "inputs"),
    outputs=("after", "window"),
    headers=HEADERS,
)


def reference(
    state: mx.array,
    delta: mx.array,
    k: mx.array,
    g: mx.array,
    path: mx.array,
    count: mx.array,
    inputs: mx.array,
) -> tuple[mx.array, mx.array]:
    """The states [L, Hv, Dv, Dk] and windows [L, W, C] of L layers after the accepted rows.

    `state`: float32 [L, Hv, Dv, Dk], before the rows. `delta`: float32 [L, T, Hv, Dv]. `k`:
    [L, T, Hk, Dk] and `g`: [L, T, Hv] or [L, T, Hv, Dk], of the verified rows. `path`: int32 [P],
    row numbers; the first `count` (int32 [1]) of them are accepted. `inputs`: [L, W + T, C], the
    inputs of the convolution: the old window, then the rows.
    """
    rows = delta.shape[1]
    repeat = delta.shape[2] // k.shape[2]
    k = mx.repeat(k, repeat, axis=2)[..., None, :]
    g = g[..., None, None] if g.ndim == 3 else g[..., None, :]
    for step in range(len(path)):
        at = path[step]
        updated = state * g[:, at] + k[:, at] * delta[:, at][..., None]
        state = mx.where(step < count, updated, state)
    width = inputs.shape[1] - rows
    order = mx.concatenate([mx.arange(width), width + path])
    return state, mx.take(inputs, order[count + mx.arange(width)], axis=1)


def launch(launcher: Launcher, *inputs: mx.array) -> list[mx.array]:
    """As `reference`, in one dispatch. The states have the same bits as in the verify kernels.

    A path of fewer than DEVICE_MEMORY_SIZE rows takes two dispatches more.
    """
    state, delta, k, g, path, count, rows = inputs
    run = recorded(launcher, dispatch, delta.shape[1])
    return run(state, delta, k, g, pad_small(path), count, rows)


def dispatch(launcher: Launcher, *inputs: mx.array) -> list[mx.array]:
    """`launch`, recorded once for each number of verified rows."""
    state, delta, k, g, _, _, rows = inputs
    layers, heads, values, keys = state.shape
    width = rows.shape[1] - delta.shape[1]
    channels = rows.shape[2]
    return launcher(
        SOURCE,
        inputs,
        template=template(k, g, state),
        grid=(heads * values * keys // 4 + width * channels, layers, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[state.shape, (layers, width, channels)],
        output_dtypes=[mx.float32, rows.dtype],
    )


def fits(*inputs: mx.array) -> bool:
    """Whether the kernel supports the inputs.

    Dk is a multiple of 4, states and deltas are float32, the window has at least one row.
    """
    state, delta, k, g, path, count, rows = inputs
    return (
        state.shape[3] % 4 == 0
        and rows.shape[1] > delta.shape[1]
        and state.dtype == delta.dtype == mx.float32
        and path.dtype == count.dtype == mx.int32
        and all(part.dtype in FLOATS for part in (k, g, rows))
    )


OP = Op("gated_delta_replay", reference, launch, fits)


def cases(shapes: Shapes) -> list[Case]:
    """0, 1 and 4 accepted rows of a path in two layers, and half a chain in a single one.

    The engine launches it for one layer at a time.
    """
    sizes = shapes.delta
    if sizes is None:
        return []
    half = max(1, shapes.rows // 2)
    found = []
    for layers, rows, path, accepted in (
        *((2, 9, [1, 4, 6, 7], accepted) for accepted in (0, 1, 4)),
        (1, shapes.rows, [*range(half)], half),
    ):
        _, k, _, g, _, state = random_rows(shapes, rows, accepted)
        state, k, g = (mx.stack([part] * layers) for part in (state, k, g))
        delta = normal_array(1, layers, rows, sizes.value_heads, sizes.value_dim)
        inputs = normal_array(2, layers, sizes.window + rows, sizes.channels)
        numbers = mx.array(path, mx.int32), mx.array([accepted], mx.int32)
        found.append((state, delta, k, g, *numbers, inputs.astype(dtype_of(shapes.dtype))))
    return found
