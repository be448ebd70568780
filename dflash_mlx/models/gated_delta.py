"""The mathematics of a Gated DeltaNet layer: mlx-lm's functions, with a layer's own parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.gated_delta import (
    compute_g,
    gated_delta_ops,
    gated_delta_update,
    normalize_qk,
)

from dflash_mlx.kernels import (
    gated_delta_inputs,
    gated_delta_replay,
    gated_delta_tape,
    gated_delta_tree,
)
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import DEVICE_MEMORY_SIZE

from .cache.tree_pass import TreePass

Project = Callable[[Any, mx.array], tuple[mx.array, mx.array, mx.array, mx.array]]


def update(
    net: Any, parts: Sequence[mx.array], state: mx.array | None
) -> tuple[mx.array, mx.array]:
    """mlx-lm's recurrence with a layer's own parameters: outputs [1, S, Hv, Dv] and the state.

    parts: see `Fed.parts`.
    """
    queries, keys, values, a, b = parts
    own = (net.A_log, net.dt_bias)
    kernel = not net.training
    return gated_delta_update(queries, keys, values, a, b, *own, state, None, use_kernel=kernel)


def walk(
    net: Any, parts: Sequence[mx.array], state: mx.array | None, stride: int
) -> tuple[mx.array, list[mx.array]]:
    """`update`, `stride` rows at a time: the outputs, and the state after each of these steps."""
    queries, keys, values, a, b = parts
    repeat = net.num_v_heads // net.num_k_heads
    queries, keys = (mx.repeat(part, repeat, axis=2) for part in (queries, keys))
    fed = queries, keys, values, compute_g(net.A_log, a, net.dt_bias), mx.sigmoid(b)
    places = list(range(stride, keys.shape[1], stride))
    outs = []
    states = []
    for q, k, v, g, beta in zip(*(mx.split(x, places, axis=1) for x in fed), strict=True):
        out, state = gated_delta_ops(q, k, v, g, beta, state)
        outs.append(out)
        states.append(state)
    return mx.concatenate(outs, axis=1), states


def update_tree(
    net: Any, parts: Sequence[mx.array], state: mx.array | None, tree: TreePass
) -> mx.array:
    """`update` over a tree: the outputs [1, R, Hv, Dv]; each row continues from its parent's state.

    All rows of one depth are computed as a batch, in one step of the recurrence.
    """
    by_depth = zip(*(tree.split(part.swapaxes(0, 1)) for part in parts), strict=True)
    outs = []
    for (count, parents), rows in zip(tree.levels, by_depth, strict=True):
        before = state
        if state is not None and not count == len(state) == 1:
            before = state[parents]
        out, state = update(net, rows, before)
        outs.append(out)
    return tree.join(outs).swapaxes(0, 1)


def project_separate(net: Any, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Qwen3.5: input x -> convolution input [1, S, C], gate [1, S, Hv, Dv], a and b [1, S, Hv]."""
    gate = net.in_proj_z(x).reshape(1, x.shape[1], net.num_v_heads, net.head_v_dim)
    return net.in_proj_qkv(x), gate, net.in_proj_a(x), net.in_proj_b(x)


def project_joined(net: Any, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Qwen3-Next: the same from two joined projections, which mlx-lm takes apart."""
    queries, keys, values, gate, b, a = net.fix_query_key_value_ordering(
        net.in_proj_qkvz(x), net.in_proj_ba(x)
    )
    flat = [part.reshape(1, x.shape[1], -1) for part in (queries, keys, values)]
    return mx.concatenate(flat, axis=-1), gate, a, b


# By the names of a module's projections.
PROJECTIONS: tuple[tuple[tuple[str, ...], Project], ...] = (
    (("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"), project_separate),
    (("in_proj_qkvz", "in_proj_ba"), project_joined),
)


# What the recurrence reads.

CHAIN_ROWS = 64  # places of that many rows are made once; longer chains are rare


@dataclass(frozen=True, slots=True)
class Fed:
    """What T rows feed to the recurrence of a layer.

    `queries` and `keys` [1, T, Hk, Dk], `values` [1, T, Hv, Dv], `a` and `b` [1, T, Hv] as mlx-lm's
    update takes them. `inputs` [1, K - 1 + T, C] are the convolution's. `gates` and `beta`
    [1, T, Hv] are those of a and b, where they are known.
    """

    queries: mx.array
    keys: mx.array
    values: mx.array
    a: mx.array
    b: mx.array
    inputs: mx.array
    gates: mx.array | None = None
    beta: mx.array | None = None

    @property
    def parts(self) -> tuple[mx.array, mx.array, mx.array, mx.array, mx.array]:
        """The arguments of mlx-lm's update."""
        return self.queries, self.keys, self.values, self.a, self.b


def chain_places(rows: int, size: int) -> mx.array:
    """The last `size` inputs of each row of a chain, as `TreePass.windows` of a tree."""
    return mx.array([[*range(row, row + size)] for row in range(rows)])


def feed(
    kernels: Kernels,
    net: Any,
    mixed: mx.array,
    a: mx.array,
    b: mx.array,
    before: mx.array,
    places: mx.array,
) -> Fed | None:
    """Convolution, norms and gates of projected rows [1, T, C] after a window [1, K - 1, C].

    `places` [T or more, K]: each row's inputs in both. None if MLX should compute them.
    """
    args = (part.squeeze(0) for part in (mixed, a, b, before))
    own = net.conv1d.weight, net.A_log, net.dt_bias, places
    made = kernels.attempt(gated_delta_inputs.OP, *args, *own, net.num_k_heads, net.head_k_dim)
    if made is None:
        return None
    queries, keys, values, gates, beta, inputs = (part[None] for part in made)
    return Fed(queries, keys, values, a, b, inputs, gates, beta)


def feed_stock(
    net: Any, mixed: mx.array, a: mx.array, b: mx.array, before: mx.array, places: mx.array | None
) -> Fed:
    """As `feed`, by MLX and mlx-lm; without `places` rows follow each other."""
    inputs = mx.concatenate([before, mixed], axis=1)
    convolved = convolve(net.conv1d, inputs, places)
    queries, keys, values = gated_delta_inputs.split_heads(
        nn.silu(convolved), net.num_k_heads, net.head_k_dim, net.num_v_heads
    )
    queries, keys = normalize_qk(queries, keys, inv_scale=net.head_k_dim**-0.5, eps=1e-6)
    return Fed(queries, keys, values, a, b, inputs)


def convolve(conv: nn.Conv1d, inputs: mx.array, places: mx.array | None) -> mx.array:
    """Inputs [1, K - 1 + T, C] -> the convolution's T rows [1, T, C].

    `places` [T, K]: the inputs of each row; None if rows follow each other.
    """
    if places is None:
        return conv(inputs)
    return conv(inputs.squeeze(0)[places]).swapaxes(0, 1)


# Gated DeltaNet rows by this package's operations, with a small tape to commit some of them.

NAMES = [op.OP.name for op in (gated_delta_tape, gated_delta_tree, gated_delta_replay)]
State = list[mx.array | None]  # of the convolution, and of the recurrence if there is one


@dataclass(frozen=True, slots=True)
class Writes:
    """What the T rows of one pass wrote to one layer's state.

    `inputs` [1, K - 1 + T, C] are the convolution's. `state` [Hv, Dv, Dk] is the state before the
    rows; `keys` [T, Hk, Dk], `gates` [T, Hv] and `delta` [T, Hv, Dv] belong to the rows.
    """

    kernels: Kernels
    inputs: mx.array
    state: mx.array
    keys: mx.array
    gates: mx.array
    delta: mx.array


def read(
    kernels: Kernels, net: Any, fed: Fed, state: mx.array | None, tree: TreePass | None
) -> tuple[mx.array, mx.array | None, Writes] | None:
    """The outputs [1, T, Hv, Dv] of a layer's rows, the state after them all, and their tape.

    The state is None after a tree. Returns None if mlx-lm should compute the rows.
    """
    if not kernels.replaces_stock(gated_delta_tape.OP if tree is None else gated_delta_tree.OP):
        return None
    if kernels.exact and not kernels.off.keys().isdisjoint(NAMES):
        kernels = replace(kernels, launcher=None)  # a kernel's bits are not its reference's
    if state is None:
        sizes = net.num_v_heads, net.head_v_dim, net.head_k_dim
        state = mx.zeros((1, *sizes), dtype=mx.float32)
    gates = fed.gates
    beta = fed.beta
    if gates is None or beta is None:
        gates = compute_g(net.A_log, fed.a, net.dt_bias)
        beta = mx.sigmoid(fed.b)
    every = fed.queries, fed.keys, fed.values, gates, beta, state
    args = tuple(part.squeeze(0) for part in every)  # views; an index copies
    _, keys, _, gates, _, before = args
    after = None
    if tree is not None:
        outputs = kernels.attempt(gated_delta_tree.OP, *args, tree.parents)
        if outputs is None:
            return None
        y, delta = outputs
    else:
        outputs = kernels.attempt(gated_delta_tape.OP, *args)
        if outputs is None:
            return None
        y, delta, after = outputs
        after = after[None]
    return y[None], after, Writes(kernels, fed.inputs, before, keys, gates, delta)


def replay(tapes: Sequence[Writes], rows: Sequence[int]) -> list[State]:
    """Windows [1, K - 1, C] and states [1, Hv, Dv, Dk] of layers after these rows.

    `rows`: the first rows of the pass, or a path if it read a tree. It runs one operation per
    layer: stacking the layers for a single operation would copy every state two more times.
    """
    places = [*rows]
    if any(tape.kernels.launcher for tape in tapes):  # or each layer's launch would pad the path
        places += [0] * (DEVICE_MEMORY_SIZE - len(places))
    path = mx.array(places, mx.int32)
    count = mx.array([len(rows)], mx.int32)
    states: list[State] = []
    for tape in tapes:
        parts = (part[None] for part in (tape.state, tape.delta, tape.keys, tape.gates))
        after, window = tape.kernels(gated_delta_replay.OP, *parts, path, count, tape.inputs)
        states.append([window, after])
    return states
