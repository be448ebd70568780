"""Verify pass of a chain in one Gated DeltaNet layer, with a tape to commit only some rows.

The tape is `delta`, the update of each row to the state. With the keys and gates of the rows it
gives the state after any row (`gated_delta_replay`). Inputs are those of mlx-lm's Gated DeltaNet:
queries and keys after `normalize_qk`, gates of `compute_g`, beta = sigmoid(b).
"""

from collections.abc import Sequence

import mlx.core as mx

from .dispatch import Op
from .samples import Case, dtype_of, normal_array
from .shapes import Shapes
from .source import Launcher, Source, recorded

LANES = 8  # per row of the state
STATE_ROWS = 16  # per threadgroup
FLOATS = (mx.float32, mx.bfloat16, mx.float16)
HEADERS = ("lanes.h", "gated_delta.h")
SOURCE = Source(
    "gated_delta_tape",
    inputs=("q", "k", "v", "g", "beta", "state"),
    outputs=("y", "delta", "after"),
    headers=HEADERS,
)


def step(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """One step of the gated delta rule -> output [Hv, Dv], delta [Hv, Dv], state [Hv, Dv, Dk].

    S <- g S; delta = beta (v - S k); S <- S + delta k; output = S q. `q` and `k` [Hk, Dk]; `v`
    [Hv, Dv]; `g` [Hv], or [Hv, Dk] with one gate for each element; `beta` [Hv]; `state`
    [Hv, Dv, Dk].
    """
    q, k = (mx.repeat(part, len(v) // len(k), axis=0)[:, None, :] for part in (q, k))
    state = state * (g[:, None, None] if g.ndim == 1 else g[:, None, :])
    delta = (v - (state * k).sum(axis=-1)) * beta[:, None]
    state = state + k * delta[..., None]
    return (state * q).sum(axis=-1), delta, state


def reference(*inputs: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """The outputs [T, Hv, Dv], deltas (float32 [T, Hv, Dv]) and the state after the last row.

    Inputs are those of `follow`.
    """
    y, delta, states = follow(*inputs, parents=range(-1, len(inputs[2]) - 1))
    return y, delta, states[-1]


def follow(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array,
    *,
    parents: Sequence[int],
) -> tuple[mx.array, mx.array, list[mx.array]]:
    """The outputs and deltas of rows, and the given state with those after each row.

    `q` and `k` [T, Hk, Dk]; `v` [T, Hv, Dv]; `g` [T, Hv] or [T, Hv, Dk]; `beta` [T, Hv]; `state`
    float32 [Hv, Dv, Dk]. Outputs have the dtype of q. `parents[row]` is an earlier row; -1 stands
    for the given `state`.
    """
    ys = []
    deltas = []
    states = [state]
    for row, parent in enumerate(parents):
        y, delta, after = step(q[row], k[row], v[row], g[row], beta[row], states[parent + 1])
        ys.append(y.astype(q.dtype))
        deltas.append(delta)
        states.append(after)
    return mx.stack(ys), mx.stack(deltas), states


def launch(launcher: Launcher, *inputs: mx.array) -> list[mx.array]:
    """As `reference`, in one dispatch. The bits of a row do not depend on the number of rows."""
    return recorded(launcher, dispatch, len(inputs[2]))(*inputs)


def dispatch(launcher: Launcher, *inputs: mx.array) -> list[mx.array]:
    """`launch`, recorded once for each number of rows."""
    q, k, v, g, _, state = inputs
    return launcher(
        SOURCE,
        inputs,
        template=[("InT", q.dtype), *template(k, g, state)],
        grid=(LANES * v.shape[1] * v.shape[2], 1, 1),
        threadgroup=(LANES * STATE_ROWS, 1, 1),
        output_shapes=[v.shape, v.shape, state.shape],
        output_dtypes=[q.dtype, mx.float32, mx.float32],
    )


def template(k: mx.array, g: mx.array, state: mx.array) -> list[tuple[str, int | bool]]:
    """The template arguments of the Gated DeltaNet kernels, for one layer or a stack of layers."""
    sizes = dict(zip(("Hv", "Dv", "Dk"), state.shape[-3:], strict=True))
    return [("Hk", k.shape[-2]), *sizes.items(), ("Vector", g.ndim == k.ndim)]


def fits(*inputs: mx.array) -> bool:
    """Whether the kernel supports the inputs: Dk a multiple of 32 up to 256, a float32 state."""
    *rows, state = inputs
    size = state.shape[-1]
    floats = all(part.dtype in FLOATS for part in rows)
    return size % 32 == 0 and size <= 256 and state.dtype == mx.float32 and floats


OP = Op("gated_delta_tape", reference, launch, fits)


def cases(shapes: Shapes) -> list[Case]:
    counts = (1, 3, shapes.rows) if shapes.delta else ()
    return [random_rows(shapes, count, count) for count in counts]


def random_rows(shapes: Shapes, count: int, seed: int) -> Case:
    """The arguments for so many rows; unit keys keep the state bounded."""
    sizes = shapes.delta
    assert sizes is not None
    dtype = dtype_of(shapes.dtype)
    q, k = (normal_array(seed + n, count, sizes.key_heads, sizes.key_dim) for n in (0, 1))
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    q = q * sizes.key_dim**-0.5
    v = normal_array(seed + 2, count, sizes.value_heads, sizes.value_dim, dtype=dtype)
    g, beta = (mx.sigmoid(normal_array(seed + n, count, sizes.value_heads)) for n in (3, 4))
    state = normal_array(seed + 5, sizes.value_heads, sizes.value_dim, sizes.key_dim)
    return q.astype(dtype), k.astype(dtype), v, g, beta.astype(dtype), state
