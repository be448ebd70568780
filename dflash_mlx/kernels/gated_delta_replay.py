"""Commits the accepted rows of all Gated DeltaNet layers of a model: states and windows.

Replays the tape of `gated_delta_tape` or `gated_delta_tree` from the states before the verify:
S <- g S + delta k for each accepted row. Knows the layers as one stack of equal shapes.
"""

import mlx.core as mx

from .dispatch import Op
from .gated_delta_tape import FLOATS, HEADERS, template
from .source import Launcher, Source

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
    """The states [L, Hv, Dv, Dk] and the windows [L, W, C] of L layers after the accepted rows.

    `state` float32 as returned, that before the rows; `delta` float32 [L, T, Hv, Dv]; `k`
    [L, T, Hk, Dk] and `g` [L, T, Hv] or [L, T, Hv, Dk], what the rows were verified with; `path`
    int32 [P], the accepted rows from the first on, of which the first `count` (int32 [1]) are
    taken; `inputs` [L, W + T, C], those of the convolution: the old window, then the rows.
    """
    rows, repeat = delta.shape[1], delta.shape[2] // k.shape[2]
    k = mx.repeat(k, repeat, axis=2)[..., None, :]
    g = g[..., None, None] if g.ndim == 3 else g[..., None, :]
    for step in range(len(path)):
        at = path[step]
        grown = state * g[:, at] + k[:, at] * delta[:, at][..., None]
        state = mx.where(step < count, grown, state)
    width = inputs.shape[1] - rows
    order = mx.concatenate([mx.arange(width), width + path])
    return state, mx.take(inputs, order[count + mx.arange(width)], axis=1)


def launch(
    launcher: Launcher,
    state: mx.array,
    delta: mx.array,
    k: mx.array,
    g: mx.array,
    path: mx.array,
    count: mx.array,
    inputs: mx.array,
) -> tuple[mx.array, mx.array]:
    """As `reference`, in one dispatch; states are those of the verify kernels bit for bit."""
    layers, heads, values, keys = state.shape
    width, channels = inputs.shape[1] - delta.shape[1], inputs.shape[2]
    after, window = launcher(
        SOURCE,
        [state, delta, k, g, path, count, inputs],
        template=template(k, g, state),
        grid=(heads * values * keys // 4 + width * channels, layers, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[state.shape, (layers, width, channels)],
        output_dtypes=[mx.float32, inputs.dtype],
    )
    return after, window


def fits(
    state: mx.array,
    delta: mx.array,
    k: mx.array,
    g: mx.array,
    path: mx.array,
    count: mx.array,
    inputs: mx.array,
) -> bool:
    """Dk a multiple of 4; float32 states and deltas; a window of at least one row."""
    return (
        state.shape[3] % 4 == 0
        and inputs.shape[1] > delta.shape[1]
        and state.dtype == delta.dtype == mx.float32
        and path.dtype == count.dtype == mx.int32
        and all(part.dtype in FLOATS for part in (k, g, inputs))
    )


OP = Op("gated_delta_replay", reference, launch, fits)
