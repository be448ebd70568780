"""The mathematics of a Gated DeltaNet layer: mlx-lm's functions, with a layer's own parameters.

Knows how a layer projects its input and steps its recurrence; knows no cache.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.gated_delta import compute_g, gated_delta_ops, gated_delta_update

from .tree_pass import TreePass

Project = Callable[[Any, mx.array], tuple[mx.array, mx.array, mx.array, mx.array]]


def update(
    net: Any,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    a: mx.array,
    b: mx.array,
    state: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """mlx-lm's recurrence with a layer's own parameters: outputs [1, S, Hv, Dv] and the state."""
    own, kernel = (net.A_log, net.dt_bias), not net.training
    return gated_delta_update(queries, keys, values, a, b, *own, state, None, use_kernel=kernel)


def walk(
    net: Any,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    a: mx.array,
    b: mx.array,
    state: mx.array | None,
    stride: int,
) -> tuple[mx.array, list[mx.array]]:
    """`update` by mlx-lm's steps: the outputs, and the states after every `stride` rows and all."""
    repeat = net.num_v_heads // net.num_k_heads
    queries, keys = (mx.repeat(part, repeat, axis=2) for part in (queries, keys))
    fed = queries, keys, values, compute_g(net.A_log, a, net.dt_bias), mx.sigmoid(b)
    places = list(range(stride, keys.shape[1], stride))
    outs, states = [], []
    for q, k, v, g, beta in zip(*(mx.split(x, places, axis=1) for x in fed), strict=True):
        out, state = gated_delta_ops(q, k, v, g, beta, state)
        outs.append(out)
        states.append(state)
    return mx.concatenate(outs, axis=1), states


def update_tree(
    net: Any,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    a: mx.array,
    b: mx.array,
    state: mx.array | None,
    tree: TreePass,
) -> mx.array:
    """`update` over a tree: the outputs [1, R, Hv, Dv] of rows that each go on from their parent.

    The rows of one depth are a batch, one step of the recurrence from their parents' states.
    """
    fed = (tree.split(part.swapaxes(0, 1)) for part in (queries, keys, values, a, b))
    outs = []
    for (count, parents), q, k, v, decay, beta in zip(tree.levels, *fed, strict=True):
        before = state
        if state is not None and not count == len(state) == 1:
            before = state[parents]
        out, state = update(net, q, k, v, decay, beta, before)
        outs.append(out)
    return tree.join(outs).swapaxes(0, 1)


def split_heads(net: Any, mixed: mx.array) -> list[mx.array]:
    """Queries, keys and values [1, S, heads, d] of the convolution's output [1, S, C]."""
    parts = mx.split(mixed, [net.key_dim, 2 * net.key_dim], axis=-1)
    wide = (net.head_k_dim, net.head_k_dim, net.head_v_dim)
    return [
        part.reshape(1, mixed.shape[1], -1, width) for part, width in zip(parts, wide, strict=True)
    ]


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
