"""How every operation is checked and timed: its cases, and what stock MLX runs in its place."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.gated_delta import compute_g, gated_delta_update
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
from dflash_mlx.kernels.dispatch import Kernels, Op
from dflash_mlx.kernels.grouped_experts import Experts
from dflash_mlx.kernels.row_limits import Padding
from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.kernels.source import Launcher
from dflash_mlx.kernels.verify_attention import Rows, Scores
from dflash_mlx.models.cache.tree_pass import TreePass
from dflash_mlx.models.gated_delta import feed_stock, update_tree
from dflash_mlx.models.linear import EXPERTS, NAMES, multiply
from dflash_mlx.speculation.tree import Tree

from .cases import (
    Case,
    Sized,
    accept_cases,
    attention_cases,
    attention_extremes,
    attention_sizes,
    defined_part,
    expert_cases,
    expert_sizes,
    input_cases,
    other_choices,
    padded_cases,
    padded_sizes,
    product_cases,
    product_sizes,
    replay_cases,
    sample_cases,
    tape_cases,
    tree_cases,
    walk_cases,
)
from .shapes import Shapes


@dataclass(frozen=True, slots=True)
class Trial:
    """How an operation is checked and timed.

    `cases(shapes)` are its arguments, the model's own last; `needs(shapes)`: whether the model has
    such layers. `stock(*once(*case))` is the same without the operation; a pass computes `once`
    for all its layers, and `before(*case)` for each launch. `recorded`: launched with others.
    Outputs are compared with `expected(*case)` (None: the reference), both after `comparable`.
    `alone(*case)` are the arguments of one row, `row` along `axis` of the first output; exact mode
    wants its bits. `sizes(shapes)` are timed, by default the last of `cases`; `untimed(shapes)` are
    built only. `rival`: another operation for the same arguments, which must be slower too.
    `again(case, number)`: a case that reads other bytes, in place of a copy of all arrays. `slow`:
    what to show in place of the ratio if the operation is faster at no size.
    """

    op: Op
    cases: Callable[[Shapes], list[Case]]
    stock: Callable[..., Any]
    needs: Callable[[Shapes], bool] = lambda _: True
    comparable: Callable[[mx.array], mx.array] = lambda output: output
    expected: Callable[..., Any] | None = None
    alone: Callable[..., Case] | None = None
    row: int = 0
    axis: int = 0
    sizes: Callable[[Shapes], Iterator[Sized]] | None = None
    untimed: Callable[[Shapes], list[Case]] = lambda _: []
    once: Callable[..., Case] = lambda *case: case
    before: Callable[..., Case] = lambda *case: case
    recorded: bool = False
    rival: Op | None = None
    again: Callable[[Case, int], Case] | None = None
    slow: str = ""

    @property
    def name(self) -> str:
        return self.op.name

    def launch(self, launcher: Launcher, *case: Any) -> Any:
        """What an answer computes with the kernel."""
        return self.op.launch(launcher, *self.before(*case))

    def fitting(self, shapes: Shapes) -> list[Case]:
        """The cases whose shapes the kernel supports; empty if the model has no such layers."""
        cases = self.cases(shapes) if self.needs(shapes) else []
        return [case for case in cases if self.op.fits(*case)]


def mlx_lm_chain(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """mlx-lm's `gated_delta_update` of a chain; computes its gates from g."""
    zeros = mx.zeros((v.shape[1],))
    rows = (q[None], k[None], v[None], g[None], beta[None])
    return gated_delta_update(*rows, zeros, zeros, state[None])


def mlx_inputs(
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
) -> list[mx.array]:
    """The engine's inputs of a chain's recurrence without the kernel, and their gates."""

    def conv1d(inputs: mx.array) -> mx.array:
        return mx.conv1d(inputs, weight, groups=len(weight))

    net = SimpleNamespace(conv1d=conv1d, num_k_heads=heads, num_v_heads=len(A_log), head_k_dim=dim)
    fed = feed_stock(net, mixed[None], a, b, window[None], None)
    parts = [fed.queries, fed.keys, fed.values]
    return [*parts, compute_g(A_log, a, dt_bias), mx.sigmoid(b)]


def gates(q: mx.array, k: mx.array, v: mx.array, a: mx.array, b: mx.array, *rest: Any) -> Case:
    """The arguments of a launch, with the gates that `mlx_lm_chain` computes from a and b."""
    zeros = mx.zeros((v.shape[1],))
    return q, k, v, compute_g(zeros, a, zeros), mx.sigmoid(b), *rest


def with_tree(*args: Any) -> Case:
    """The arguments of `mlx_lm_tree`; row 0 of the parents is the anchor."""
    *rows, parents = args
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    nodes = len(parents) - 1
    tree = TreePass(Tree((0,) * nodes, parents[1:], tuple(depths[1:]), (0.0,) * nodes))
    mx.eval(tree.levels, tree.by_level, tree.by_row)
    return *rows, tree


def mlx_lm_tree(*args: Any) -> mx.array:
    """The engine's tree verification without the kernel: one mlx-lm update for each depth."""
    *rows, tree = args
    zeros = mx.zeros((rows[2].shape[1],))
    net = SimpleNamespace(A_log=zeros, dt_bias=zeros, training=False)
    q, k, v, a, b, state = (part[None] for part in rows)
    return update_tree(net, q, k, v, a, b, state, tree)


def with_values(
    state: mx.array, delta: mx.array, k: mx.array, g: mx.array, path: mx.array, *_: Any
) -> Case:
    """The arguments of `mlx_lm_replay`: mlx-lm reads values, which have the dtype of k."""
    return state, delta.astype(k.dtype), k, g, len(path)


def mlx_lm_replay(
    state: mx.array,
    values: mx.array,
    k: mx.array,
    g: mx.array,
    count: int,
) -> list[mx.array]:
    """The engine's commit of a chain without the kernel: its first rows run again in each layer."""
    results = []
    for layer in range(len(state)):
        keys, fed, decay = (part[layer, :count] for part in (k, values, g))
        results.append(mlx_lm_chain(keys, keys, fed, decay, decay, state[layer])[1])
    return results


def with_mask(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> Case:
    """The arguments of `mlx_attention`, with mlx-lm's mask of a chain."""
    count = q.shape[1]
    window = scores.window or None
    cached = rows.context if window is None else min(rows.context, window - 1)
    first = rows.context - cached
    end = rows.context + count
    mask: Any = "causal" if count > 1 else None
    if window is not None:
        mask = create_causal_mask(count, cached, window_size=window)
    return q, keys, values, slice(first, end), mask, scores


def mlx_attention(
    q: mx.array, keys: mx.array, values: mx.array, seen: slice, mask: Any, scores: Scores
) -> mx.array:
    k, v = (part[None, :, seen] for part in (keys, values))
    return mx.fast.scaled_dot_product_attention(
        q[None], k, v, scale=scores.scale, mask=mask, sinks=scores.sinks
    )


def mlx_product(x: mx.array, weights: Weights, padding: Padding | None = None) -> mx.array:
    """The product as MLX's layers compute it, without any padding."""
    return multiply(Kernels(), weights, x)


def float32_product(x: mx.array, weights: Weights) -> mx.array:
    """The product in float32, rounded once. MLX's CPU backend also rounds partial sums."""
    if weights.scales is None:
        weights = replace(weights, values=weights.values.astype(mx.float32))
    return small_m_qmm.product(x.astype(mx.float32), weights).astype(x.dtype)


def with_layer(x: mx.array, indices: mx.array, experts: Experts) -> Case:
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
    return x, indices, layer


def mlx_experts(x: mx.array, indices: mx.array, layer: SwitchGLU) -> mx.array:
    """mlx-lm's layer of experts, which sorts many pairs of rows and experts."""
    return layer(x, indices)


# Our kernel for the cases of padded rows.
FEW_ROWS = Op(
    small_m_qmm.OP.name,
    padded_rows.reference,
    lambda launcher, x, weights, _: small_m_qmm.launch(launcher, x, weights),
    lambda x, weights, _: small_m_qmm.fits(x, weights),
    lambda x, weights, _: small_m_qmm.size(x, weights),
)


def first_rows(*args: Any) -> Case:
    rows = args[:5]
    rest = args[5:]
    return (*(part[:1] for part in rows), rest[0], *(parents[:1] for parents in rest[1:]))


def first_query(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> Case:
    return q[:, :1], keys, values, Rows.of(rows.context, (-1,), rows.start), scores


def has_delta(shapes: Shapes) -> bool:
    return shapes.delta is not None


ACCEPT = verify_accept.OP
SAMPLE = verify_accept_sample.OP
WALK = selector_walk.OP
TAPE = gated_delta_tape.OP
# In the order of the check: first what gains most.
TRIALS = (
    Trial(
        small_m_qmm.OP,
        product_cases,
        mlx_product,
        lambda shapes: bool(shapes.linears),
        expected=float32_product,
        alone=lambda x, weights: (x[-1:], weights),
        row=-1,
        sizes=product_sizes,
        recorded=True,
    ),
    Trial(
        grouped_experts.OP,
        expert_cases,
        mlx_experts,
        lambda shapes: bool(shapes.experts),
        alone=lambda x, indices, experts: (x[-1:], indices[-1:], experts),
        row=-1,
        sizes=expert_sizes,
        once=with_layer,
        recorded=True,
        again=other_choices,
    ),
    Trial(
        verify_attention.OP,
        attention_cases,
        mlx_attention,
        lambda shapes: bool(shapes.attention),
        alone=first_query,
        axis=1,
        sizes=attention_sizes,
        untimed=attention_extremes,
        once=with_mask,
    ),
    Trial(
        gated_delta_inputs.OP,
        input_cases,
        mlx_inputs,
        has_delta,
        alone=lambda mixed, a, b, *rest: (mixed[:1], a[:1], b[:1], *rest),
    ),
    Trial(TAPE, tape_cases, mlx_lm_chain, has_delta, alone=first_rows, before=gates),
    Trial(
        gated_delta_tree.OP,
        tree_cases,
        mlx_lm_tree,
        has_delta,
        alone=first_rows,
        once=with_tree,
        before=gates,
    ),
    Trial(gated_delta_replay.OP, replay_cases, mlx_lm_replay, has_delta, once=with_values),
    Trial(ACCEPT, accept_cases, ACCEPT.reference, comparable=defined_part),
    Trial(SAMPLE, sample_cases, SAMPLE.reference, comparable=defined_part),
    Trial(WALK, walk_cases, WALK.reference, lambda shapes: shapes.selector is not None),
    Trial(
        padded_rows.OP,
        padded_cases,
        mlx_product,
        lambda shapes: not shapes.exact,
        expected=mlx_product,
        sizes=padded_sizes,
        recorded=True,
        rival=FEW_ROWS,
        slow="zero rows gain nothing here",
    ),
)


def outputs(result: Any) -> list[mx.array]:
    return list(result) if isinstance(result, list | tuple) else [result]
