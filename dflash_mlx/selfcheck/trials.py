"""How every kernel is checked: its cases, and what stock MLX runs in its place."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.gated_delta import (
    compute_g,
    gated_delta_kernel,
    gated_delta_ops,
    gated_delta_update,
)
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear

from dflash_mlx.kernels import (
    gated_delta_inputs,
    gated_delta_replay,
    gated_delta_tape,
    gated_delta_tree,
    grouped_experts,
    padded_rows,
    selector_walk,
    small_m_qmm,
    verify_accept,
    verify_accept_sample,
    verify_attention,
)
from dflash_mlx.kernels.dispatch import Kernels, Op, by_metal
from dflash_mlx.kernels.grouped_experts import Experts
from dflash_mlx.kernels.samples import Case
from dflash_mlx.kernels.shapes import Shapes
from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.kernels.verify_attention import Rows, Scores
from dflash_mlx.models.cache.tree_pass import TreePass
from dflash_mlx.models.gated_delta import feed_stock, update_tree
from dflash_mlx.models.linear import EXPERTS, NAMES, multiply
from dflash_mlx.speculation.tree import Tree

MAX_RATIO = 1.05  # to the time without a kernel; smaller differences are noise
Stock = Callable[[mx.array], Any]  # of the first argument; all else is prepared


@dataclass(frozen=True, slots=True)
class Trial:
    """How an operation is checked and timed.

    `cases(shapes)` are compared with `expected(*case)` (None: the reference), both `comparable`.
    `sizes(shapes)` are timed, by default the last case. `stock(kernels, *case)` is what runs
    without the operation where these kernels may run. The time may be `most` of that.
    `alone(*case)` are the arguments of one row, `row` is that row of the first output; exact mode
    wants its bits. `recorded`: an answer launches it together with others. `rival`: the kernel that
    `stock` may launch, recorded like this one. `again(case, number)`: a case that reads other
    bytes; None copies all arrays.
    """

    op: Op
    cases: Callable[[Shapes], list[Case]]
    stock: Callable[..., Stock]
    expected: Callable[..., Any] | None = None
    comparable: Callable[[mx.array], mx.array] = lambda output: output
    sizes: Callable[[Shapes], Iterable[Case]] | None = None
    most: float = MAX_RATIO
    alone: Callable[..., Case] | None = None
    row: Callable[[mx.array], mx.array] = lambda output: output[:1]
    recorded: bool = False
    rival: Op | None = None
    again: Callable[[Case, int], Case] | None = None

    @property
    def name(self) -> str:
        return self.op.name

    def fitting(self, shapes: Shapes) -> list[Case]:
        """The cases whose shapes the kernel supports; empty if the model has no such layers."""
        return [case for case in self.cases(shapes) if self.op.fits(*case)]

    def timed(self, shapes: Shapes) -> Iterable[Case]:
        return self.sizes(shapes) if self.sizes else self.fitting(shapes)[-1:]


def defined_part(outcome: mx.array) -> mx.array:
    """The outcome of an accept operation; if its NaN flag is set, zeros after the flag."""
    return mx.where((outcome[0] == 1) & (mx.arange(outcome.size) > 0), 0, outcome)


def layer_product(kernels: Kernels, _: mx.array, weights: Weights, *__: Any) -> Stock:
    """The product as a layer computes it: by MLX, or by our kernel where that is in use."""
    return lambda x: multiply(kernels, weights, x)


def float32_product(x: mx.array, weights: Weights, *_: Any) -> mx.array:
    """The product in float32, rounded once. MLX's CPU backend also rounds partial sums."""
    if weights.scales is None:
        weights = replace(weights, values=weights.values.astype(mx.float32))
    return small_m_qmm.product(x.astype(mx.float32), weights).astype(x.dtype)


def mlx_experts(_: Kernels, __: mx.array, indices: mx.array, experts: Experts) -> Stock:
    """mlx-lm's layer of experts, which sorts many pairs of rows and experts."""
    activation: Any = experts.activation
    layer = SwitchGLU(1, 1, 1, activation)
    for name, part in zip(EXPERTS, experts.parts, strict=True):
        biased = part.bias is not None
        linear: Any = SwitchLinear(1, 1, 1, biased)
        if part.scales is not None:
            packing = part.group, part.bits, part.mode
            linear = QuantizedSwitchLinear(128, 1, 1, biased, *packing)
        arrays = zip(NAMES, (part.values, part.scales, part.biases, part.bias), strict=True)
        linear.update({name: array for name, array in arrays if array is not None})
        layer[name] = linear
    return lambda x: layer(x, indices)


def mlx_attention(
    _: Kernels, q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores
) -> Stock:
    """MLX's attention, with mlx-lm's mask of a chain."""
    count = q.shape[1]
    window = scores.window or None
    cached = rows.context if window is None else min(rows.context, window - 1)
    seen = slice(rows.context - cached, rows.context + count)
    mask: Any = "causal" if count > 1 else None
    if window is not None:
        mask = create_causal_mask(count, cached, window_size=window)
        mx.eval(mask)

    def run(q: mx.array) -> mx.array:
        k, v = (part[None, :, seen] for part in (keys, values))
        return mx.fast.scaled_dot_product_attention(
            q[None], k, v, scale=scores.scale, mask=mask, sinks=scores.sinks
        )

    return run


def mlx_inputs(_: Kernels, *case: Any) -> Stock:
    """The engine's inputs of a chain's recurrence without the kernel, and their gates."""
    _, a, b, window, weight, A_log, dt_bias, _, heads, dim = case
    net = SimpleNamespace(
        conv1d=lambda inputs: mx.conv1d(inputs, weight, groups=len(weight)),
        num_k_heads=heads,
        num_v_heads=len(A_log),
        head_k_dim=dim,
    )

    def run(mixed: mx.array) -> list[mx.array]:
        fed = feed_stock(net, mixed[None], a, b, window[None], None)
        gates = [compute_g(A_log, a, dt_bias), mx.sigmoid(b)]
        return [fed.queries, fed.keys, fed.values, *gates]

    return run


def mlx_chain(_: Kernels, *case: Any) -> Stock:
    """mlx-lm's recurrence of a chain, with gates that are computed before, as for the kernel."""
    rows = [part[None] for part in case[1:]]
    mx.eval(rows)
    recur = gated_delta_kernel if by_metal() else gated_delta_ops
    return lambda q: recur(q[None], *rows)


def mlx_tree(_: Kernels, *case: Any) -> Stock:
    """The engine's tree verification without the kernel: one mlx-lm update for each depth."""
    parents = case[-1][1:]  # the first is the anchor's
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    tree = TreePass(Tree((0,) * len(parents), parents, tuple(depths[1:]), (0.0,) * len(parents)))
    _, k, v, g, beta, state = case[:6]
    zeros = mx.zeros(v.shape[1])
    gates = mx.log(1 / g - 1), mx.log(beta / (1 - beta))
    k, v, a, b, state = (part[None] for part in (k, v, *gates, state))
    net = SimpleNamespace(A_log=zeros, dt_bias=zeros, training=False)
    mx.eval(k, v, a, b, state, tree.levels, tree.by_level, tree.by_row)
    return lambda q: update_tree(net, (q[None], k, v, a, b), state, tree)


def mlx_replay(_: Kernels, *case: Any) -> Stock:
    """The engine's commit of a chain without the kernel: its first rows run again in each layer."""
    _, delta, k, g, path = case[:5]
    zeros = mx.zeros(delta.shape[2])
    count = len(path)
    layers = [part[:, None, :count] for part in (k, delta.astype(k.dtype), g)]
    mx.eval(layers)

    def run(state: mx.array) -> list[mx.array]:
        results = []
        for before, keys, values, decay in zip(state, *layers, strict=True):
            rows = (keys, keys, values, decay, decay)
            results.append(gated_delta_update(*rows, zeros, zeros, before[None])[1])
        return results

    return run


def first_rows(*args: Any) -> Case:
    """One row of a recurrence; a tree's parents are the last argument."""
    rows = args[:5]
    rest = args[5:]
    return (*(part[:1] for part in rows), rest[0], *(parents[:1] for parents in rest[1:]))


def first_query(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> Case:
    return q[:, :1], keys, values, Rows.of(rows.context, (-1,), rows.start), scores


def trial(kernel: ModuleType, stock: Callable[..., Stock] | None = None, **options: Any) -> Trial:
    """How the operation of a kernel's module is checked; it is timed at its `sizes`, if it has any.

    Without `stock` the kernel competes with its reference.
    """
    op = kernel.OP
    sizes = getattr(kernel, "sizes", None)
    stock = stock or (lambda _, __, *rest: lambda x: op.reference(x, *rest))
    return Trial(op, kernel.cases, stock, sizes=sizes, **options)


# In the order of the check: first what gains most.
TRIALS = (
    trial(
        small_m_qmm,
        layer_product,
        expected=float32_product,
        alone=lambda x, weights: (x[-1:], weights),
        row=lambda output: output[-1:],
        recorded=True,
    ),
    trial(
        grouped_experts,
        mlx_experts,
        alone=lambda x, indices, experts: (x[-1:], indices[-1:], experts),
        row=lambda output: output[-1:],
        recorded=True,
        again=grouped_experts.other_choices,
    ),
    trial(verify_attention, mlx_attention, alone=first_query, row=lambda output: output[:, :1]),
    trial(
        gated_delta_inputs,
        mlx_inputs,
        alone=lambda mixed, a, b, *rest: (mixed[:1], a[:1], b[:1], *rest),
    ),
    trial(gated_delta_tape, mlx_chain, alone=first_rows),
    trial(gated_delta_tree, mlx_tree, alone=first_rows),
    trial(gated_delta_replay, mlx_replay),
    trial(verify_accept, comparable=defined_part),
    trial(verify_accept_sample, comparable=defined_part),
    trial(selector_walk),
    trial(
        padded_rows,
        layer_product,
        expected=float32_product,
        most=1 / MAX_RATIO,
        recorded=True,
        rival=small_m_qmm.OP,
    ),
)
