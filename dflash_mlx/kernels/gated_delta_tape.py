"""Verify rows of one Gated DeltaNet layer, a chain, with the small tape that can commit fewer.

The tape is `delta`, what each row wrote to the state; with the rows' keys and gates it gives the
state after any of them (`gated_delta_replay`). Knows neither convolutions nor layers: queries and
keys are those of mlx-lm's `normalize_qk`, gates those of its `compute_g`, beta is sigmoid(b).
"""

import mlx.core as mx

from .dispatch import Op
from .source import Launcher, Source

LANES = 8  # that hold one row of the state
ROWS = 16  # of the state in a threadgroup
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
    """One row, the gated delta rule: its output and delta [Hv, Dv] and the state after it.

    `q` and `k` [Hk, Dk]; `v` [Hv, Dv]; `g` [Hv] or, one an element, [Hv, Dk]; `beta` [Hv]; `state`
    [Hv, Dv, Dk].
    """
    q, k = (mx.repeat(part, len(v) // len(k), axis=0)[:, None, :] for part in (q, k))
    state = state * (g[:, None, None] if g.ndim == 1 else g[:, None, :])
    delta = (v - (state * k).sum(axis=-1)) * beta[:, None]
    state = state + k * delta[..., None]
    return (state * q).sum(axis=-1), delta, state


def reference(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """The rows' outputs [T, Hv, Dv], their deltas (float32, same shape) and the state after all.

    `q` and `k` [T, Hk, Dk]; `v` [T, Hv, Dv]; `g` [T, Hv] or [T, Hv, Dk]; `beta` [T, Hv]; `state`
    float32 [Hv, Dv, Dk]. Outputs are of q's dtype.
    """
    ys, deltas = [], []
    for row in range(len(v)):
        y, delta, state = step(q[row], k[row], v[row], g[row], beta[row], state)
        ys.append(y.astype(q.dtype))
        deltas.append(delta)
    return mx.stack(ys), mx.stack(deltas), state


def launch(
    launcher: Launcher,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """As `reference`, in one dispatch. No row's arithmetic depends on how many rows there are."""
    y, delta, after = launcher(
        SOURCE,
        [q, k, v, g, beta, state],
        template=[("InT", q.dtype), *template(k, g, state)],
        grid=(LANES * v.shape[1] * v.shape[2], 1, 1),
        threadgroup=(LANES * ROWS, 1, 1),
        output_shapes=[v.shape, v.shape, state.shape],
        output_dtypes=[q.dtype, mx.float32, mx.float32],
    )
    return y, delta, after


def template(k: mx.array, g: mx.array, state: mx.array) -> list[tuple[str, int | bool]]:
    """The sizes that the kernels of this rule are compiled for, of a layer or a stack of them."""
    sizes = dict(zip(("Hv", "Dv", "Dk"), state.shape[-3:], strict=True))
    return [("Hk", k.shape[-2]), *sizes.items(), ("Vector", g.ndim == k.ndim)]


def fits(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> bool:
    """Dk a multiple of 32 up to 256, any Dv; a float32 state."""
    return (
        k.shape[2] % 32 == 0
        and k.shape[2] <= 256
        and state.dtype == mx.float32
        and all(part.dtype in FLOATS for part in (q, k, v, g, beta))
    )


OP = Op("gated_delta_tape", reference, launch, fits)
