"""Gated DeltaNet rows by this package's operations, and the small tape that can commit fewer.

The tape is what each row wrote to the state. A replay gives the state after the rows that stay, bit
for bit that of plain steps. Knows neither caches nor when.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx_lm.models.gated_delta import compute_g

from dflash_mlx.kernels import gated_delta_replay, gated_delta_tape, gated_delta_tree
from dflash_mlx.kernels.dispatch import Kernels

from .tree_pass import TreePass

NAMES = [op.OP.name for op in (gated_delta_tape, gated_delta_tree, gated_delta_replay)]
State = list[mx.array | None]  # of the convolution, and of the recurrence


@dataclass(frozen=True, slots=True)
class Writes:
    """What the T rows of one pass wrote to one layer's state.

    `inputs` [1, K - 1 + T, C] are the convolution's; `state` [Hv, Dv, Dk] is that before the rows;
    `keys` [T, Hk, Dk], `gates` [T, Hv] and `delta` [T, Hv, Dv] are theirs.
    """

    kernels: Kernels
    inputs: mx.array
    state: mx.array
    keys: mx.array
    gates: mx.array
    delta: mx.array


def read(
    kernels: Kernels,
    net: Any,
    fed: Sequence[mx.array],
    inputs: mx.array,
    state: mx.array | None,
    tree: TreePass | None,
) -> tuple[mx.array, mx.array | None, Writes] | None:
    """The outputs [1, T, Hv, Dv] of a layer's rows, the state after them all, and their tape.

    `fed` are queries, keys, values, a and b, as mlx-lm's update takes them. There is no state after
    a tree. None if the operations do not take such rows.
    """
    if kernels.exact and not kernels.off.keys().isdisjoint(NAMES):
        kernels = replace(kernels, launcher=None)  # a kernel's bits are not its reference's
    queries, keys, values, a, b = (part.squeeze(0) for part in fed)  # views; an index copies
    if state is None:
        sizes = net.num_v_heads, net.head_v_dim, net.head_k_dim
        state = mx.zeros((1, *sizes), dtype=mx.float32)
    gates, before = compute_g(net.A_log, a, net.dt_bias), state.squeeze(0)
    args = queries, keys, values, gates, mx.sigmoid(b), before
    after = None
    if tree is not None:
        if not kernels.takes(gated_delta_tree.OP, *args, tree.parents):
            return None
        y, delta = kernels(gated_delta_tree.OP, *args, tree.parents)
    else:
        if not kernels.takes(gated_delta_tape.OP, *args):
            return None
        y, delta, after = kernels(gated_delta_tape.OP, *args)
        after = after[None]
    return y[None], after, Writes(kernels, inputs, before, keys, gates, delta)


def replay(tapes: Sequence[Writes], rows: Sequence[int]) -> list[State]:
    """Windows [1, K - 1, C] and states [1, Hv, Dv, Dk] of layers after these rows.

    `rows` are those of the pass from the first on, a path where it read a tree. One operation a
    layer: to stack the layers for one would move every state twice more.
    """
    path, count = mx.array([*rows], mx.int32), mx.array([len(rows)], mx.int32)
    found: list[State] = []
    for tape in tapes:
        parts = (part[None] for part in (tape.state, tape.delta, tape.keys, tape.gates))
        after, window = tape.kernels(gated_delta_replay.OP, *parts, path, count, tape.inputs)
        found.append([window, after])
    return found


def convolve(net: Any, inputs: mx.array, places: mx.array) -> mx.array:
    """A layer's convolution without a bias, [1, T, C], each row summed by itself in one order.

    Row t reads `inputs` [1, K - 1 + T, C] at `places` [T, K].
    """
    taps = net.conv1d.weight[..., 0].T.astype(mx.float32)  # [K, C]
    rows = inputs.squeeze(0)[places].astype(mx.float32)
    total = rows[:, 0] * taps[0]
    for tap in range(1, len(taps)):
        total = total + rows[:, tap] * taps[tap]
    return total[None].astype(inputs.dtype)
