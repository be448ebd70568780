"""How every operation is tried on a user's machine: its cases, and what it is timed against.

One entry an operation, in `TRIALS`. Knows no launcher and no clock.
"""

from collections.abc import Callable
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
from dflash_mlx.target.gated_delta import grow
from dflash_mlx.target.tree_pass import Branch

from .cases import (
    Case,
    accept_cases,
    attention_cases,
    meant,
    product_cases,
    replay_cases,
    sample_cases,
    tape_cases,
    tree_cases,
    walk_cases,
)
from .shapes import Shapes


@dataclass(frozen=True, slots=True)
class Trial:
    """How an operation is tried.

    `cases(shapes)` are arguments, those at the model's own sizes last; `needs(shapes)` says whether
    the model has such layers. `stock(*case)` is what MLX or mlx-lm would compute in its place.
    Results are compared with `truth(*case)`, the reference if there is none, after `meaning` was
    applied to each output of both. `alone(*case)` are arguments that give only row `row` of the
    first output, along `axis`, and must give the same bits.
    """

    op: Op
    cases: Callable[[Shapes], list[Case]]
    stock: Callable[..., Any]
    needs: Callable[[Shapes], bool] = lambda _: True
    meaning: Callable[[mx.array], mx.array] = lambda output: output
    truth: Callable[..., Any] | None = None
    alone: Callable[..., Case] | None = None
    row: int = 0
    axis: int = 0

    @property
    def name(self) -> str:
        """The operation's."""
        return self.op.name

    def fitting(self, shapes: Shapes) -> list[Case]:
        """The cases that the kernels take; none where the model has no such layers."""
        cases = self.cases(shapes) if self.needs(shapes) else []
        return [case for case in cases if self.op.fits(*case)]


def chained(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """mlx-lm's recurrence over a chain, which finds its gates by itself."""
    own = mx.zeros((v.shape[1],))
    rows = (q[None], k[None], v[None], g[None], beta[None])
    return gated_delta_update(*rows, own, own, state[None])


def branched(*args: Any) -> mx.array:
    """What this engine does with a tree by mlx-lm's recurrence: a step for each depth."""
    *rows, state, parents = args
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    nodes = len(parents)  # of a tree whose anchor is one more row
    tree = Tree((0,) * nodes, tuple(p + 1 for p in parents), tuple(depths), (0.0,) * nodes)
    q, k, v, g, beta = (mx.concatenate([part[:1], part])[None] for part in rows)
    own = mx.zeros((v.shape[2],))
    net = SimpleNamespace(A_log=own, dt_bias=own, training=False)
    return grow(net, q, k, v, g, beta, state[None], Branch(tree))


def replayed(
    state: mx.array,
    delta: mx.array,
    k: mx.array,
    g: mx.array,
    path: mx.array,
    count: mx.array,
    inputs: mx.array,
) -> list[mx.array]:
    """What this engine does without a tape: the accepted rows of every layer once more."""
    found, taken, rows = [], len(path), delta.shape[1]
    for layer in range(len(state)):
        fed = k[layer, path], k[layer, path], delta[layer, path].astype(k.dtype), g[layer, path]
        found.append(chained(*fed, g[layer, path], state[layer])[1])
        found.append(mx.contiguous(inputs[layer, taken : taken + inputs.shape[1] - rows]))
    return found


def attended(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> mx.array:
    """MLX's attention over a chain, with the mask that mlx-lm would give it."""
    count, window = q.shape[1], scores.window or None
    held = rows.context if window is None else min(rows.context, window - 1)
    first, end = rows.context - held, rows.context + count
    mask: Any = "causal" if count > 1 else None
    if window is not None:
        mask = create_causal_mask(count, held, window_size=window)
    k, v = (part[None, :, first:end] for part in (keys, values))
    return mx.fast.scaled_dot_product_attention(
        q[None], k, v, scale=scores.scale, mask=mask, sinks=scores.sinks
    )


def multiplied(x: mx.array, weights: Weights) -> mx.array:
    """The product in float32, rounded once: MLX's CPU rounds sums of 16 bits on their way."""
    if weights.scales is None:
        weights = replace(weights, values=weights.values.astype(mx.float32))
    return small_m_qmm.product(x.astype(mx.float32), weights).astype(x.dtype)


def last_row(x: mx.array, weights: Weights) -> Case:
    """A product of the last row only."""
    return x[-1:], weights


def first_rows(*args: Any) -> Case:
    """A recurrence of the first row only; of a tree too."""
    rows, rest = args[:5], args[5:]
    return (*(part[:1] for part in rows), rest[0], *(parents[:1] for parents in rest[1:]))


def first_query(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> Case:
    """Attention of the first row only."""
    return q[:, :1], keys, values, Rows.of(rows.context, (-1,), rows.start), scores


def has_delta(shapes: Shapes) -> bool:
    """Whether a model has Gated DeltaNet layers."""
    return shapes.delta is not None


ACCEPT, SAMPLE, WALK = verify_accept.OP, verify_accept_sample.OP, selector_walk.OP
TRIALS = (
    Trial(ACCEPT, accept_cases, ACCEPT.reference, meaning=meant),
    Trial(SAMPLE, sample_cases, SAMPLE.reference, meaning=meant),
    Trial(WALK, walk_cases, WALK.reference, lambda shapes: shapes.selector is not None),
    Trial(
        small_m_qmm.OP,
        product_cases,
        small_m_qmm.product,
        lambda shapes: bool(shapes.linears),
        truth=multiplied,
        alone=last_row,
        row=-1,
    ),
    Trial(gated_delta_tape.OP, tape_cases, chained, has_delta, alone=first_rows),
    Trial(gated_delta_tree.OP, tree_cases, branched, has_delta, alone=first_rows),
    Trial(gated_delta_replay.OP, replay_cases, replayed, has_delta),
    Trial(
        verify_attention.OP,
        attention_cases,
        attended,
        lambda shapes: bool(shapes.attention),
        alone=first_query,
        axis=1,
    ),
)
