"""The trial of each operation: its cases, and the stock operations that it is timed against.

`TRIALS` has one entry for each operation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.gated_delta import gated_delta_update

from dflash_mlx.kernels import (
    gated_delta_replay,
    gated_delta_tape,
    gated_delta_tree,
    selector_walk,
    small_m_qmm,
    verify_accept,
    verify_accept_sample,
    verify_attention,
)
from dflash_mlx.kernels.dispatch import Op
from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.kernels.verify_attention import Rows, Scores
from dflash_mlx.speculation.tree import Tree
from dflash_mlx.target.gated_delta import update_tree
from dflash_mlx.target.tree_pass import TreePass

from .attentions import attention_cases, attention_sizes
from .cases import (
    Case,
    accept_cases,
    defined_part,
    replay_cases,
    sample_cases,
    tape_cases,
    tree_cases,
    walk_cases,
)
from .products import Sized, product_cases, product_sizes
from .shapes import Shapes


@dataclass(frozen=True, slots=True)
class Trial:
    """How an operation is tried.

    `cases(shapes)` are its arguments, those at the model's sizes last; `needs(shapes)` says whether
    the model has such layers. `stock(*case)` is what MLX or mlx-lm computes without the operation.
    Each output is compared with that of `expected(*case)` (None: the reference), after `comparable`
    is applied to both. `alone(*case)` are arguments of row `row` only, along `axis` of the first
    output; exact mode requires the same bits. `sizes(shapes)` are the cases to time, where the
    speed depends on them; without it that is the last case.
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

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.op.name

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


def mlx_lm_tree(*args: Any) -> mx.array:
    """The engine's tree verify without the kernel: one mlx-lm update for each depth."""
    *rows, state, parents = args
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    nodes = len(parents)  # without the anchor, which is one more row
    tree = Tree((0,) * nodes, tuple(p + 1 for p in parents), tuple(depths), (0.0,) * nodes)
    q, k, v, g, beta = (mx.concatenate([part[:1], part])[None] for part in rows)
    zeros = mx.zeros((v.shape[2],))
    net = SimpleNamespace(A_log=zeros, dt_bias=zeros, training=False)
    return update_tree(net, q, k, v, g, beta, state[None], TreePass(tree))


def mlx_lm_replay(
    state: mx.array,
    delta: mx.array,
    k: mx.array,
    g: mx.array,
    path: mx.array,
    count: mx.array,
    inputs: mx.array,
) -> list[mx.array]:
    """The engine's commit without the kernel: the accepted rows run again in each layer."""
    found, accepted, rows = [], len(path), delta.shape[1]
    for layer in range(len(state)):
        fed = k[layer, path], k[layer, path], delta[layer, path].astype(k.dtype), g[layer, path]
        found.append(mlx_lm_chain(*fed, g[layer, path], state[layer])[1])
        found.append(mx.contiguous(inputs[layer, accepted : accepted + inputs.shape[1] - rows]))
    return found


def mlx_attention(
    q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores
) -> mx.array:
    """MLX's attention of a chain, with mlx-lm's mask."""
    count, window = q.shape[1], scores.window or None
    cached = rows.context if window is None else min(rows.context, window - 1)
    first, end = rows.context - cached, rows.context + count
    mask: Any = "causal" if count > 1 else None
    if window is not None:
        mask = create_causal_mask(count, cached, window_size=window)
    k, v = (part[None, :, first:end] for part in (keys, values))
    return mx.fast.scaled_dot_product_attention(
        q[None], k, v, scale=scores.scale, mask=mask, sinks=scores.sinks
    )


def float32_product(x: mx.array, weights: Weights) -> mx.array:
    """The product in float32, rounded once. MLX's CPU backend also rounds partial sums."""
    if weights.scales is None:
        weights = replace(weights, values=weights.values.astype(mx.float32))
    return small_m_qmm.product(x.astype(mx.float32), weights).astype(x.dtype)


def last_row(x: mx.array, weights: Weights) -> Case:
    """The arguments of a product of the last row only."""
    return x[-1:], weights


def first_rows(*args: Any) -> Case:
    """The arguments of a recurrence, chain or tree, of the first row only."""
    rows, rest = args[:5], args[5:]
    return (*(part[:1] for part in rows), rest[0], *(parents[:1] for parents in rest[1:]))


def first_query(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> Case:
    """The arguments of attention of the first row only."""
    return q[:, :1], keys, values, Rows.of(rows.context, (-1,), rows.start), scores


def has_delta(shapes: Shapes) -> bool:
    """Whether a model has Gated DeltaNet layers."""
    return shapes.delta is not None


ACCEPT, SAMPLE, WALK = verify_accept.OP, verify_accept_sample.OP, selector_walk.OP
TRIALS = (
    Trial(ACCEPT, accept_cases, ACCEPT.reference, comparable=defined_part),
    Trial(SAMPLE, sample_cases, SAMPLE.reference, comparable=defined_part),
    Trial(WALK, walk_cases, WALK.reference, lambda shapes: shapes.selector is not None),
    Trial(
        small_m_qmm.OP,
        product_cases,
        small_m_qmm.product,
        lambda shapes: bool(shapes.linears),
        expected=float32_product,
        alone=last_row,
        row=-1,
        sizes=product_sizes,
    ),
    Trial(gated_delta_tape.OP, tape_cases, mlx_lm_chain, has_delta, alone=first_rows),
    Trial(gated_delta_tree.OP, tree_cases, mlx_lm_tree, has_delta, alone=first_rows),
    Trial(gated_delta_replay.OP, replay_cases, mlx_lm_replay, has_delta),
    Trial(
        verify_attention.OP,
        attention_cases,
        mlx_attention,
        lambda shapes: bool(shapes.attention),
        alone=first_query,
        axis=1,
        sizes=attention_sizes,
    ),
)
