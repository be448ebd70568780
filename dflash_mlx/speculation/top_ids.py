"""The likeliest tokens of a large vocabulary without sorting all of it."""

import mlx.core as mx

GROUP = 64  # tokens of a block


def top_ids(logits: mx.array, count: int) -> mx.array:
    """The ids [γ, count], ascending, of the largest of logits [γ, V], the argmax surely of them.

    Of equals the smaller ids, as MLX's `argpartition` takes them. The `count` largest are in the
    `count` blocks with the largest maxima; only those are sorted, so that no sort is wider than
    the number of blocks or their tokens. V that is no multiple of GROUP, or small, is sorted whole.
    """
    best = mx.argmax(logits, axis=-1, keepdims=True)
    if count == 1:
        return best
    costs = mx.put_along_axis(-logits, best, mx.array(-mx.inf), axis=-1)
    if logits.shape[-1] % GROUP or logits.shape[-1] < 4 * GROUP * count:
        return mx.sort(mx.argpartition(costs, count - 1, axis=-1)[:, :count], axis=-1)
    costs = costs.reshape(costs.shape[0], -1, GROUP)
    # In order, so that equals inside the blocks stand in the order of their ids.
    blocks = mx.sort(mx.argpartition(costs.min(axis=-1), count - 1, axis=-1)[:, :count], axis=-1)
    inside = mx.take_along_axis(costs, blocks[..., None], axis=1).reshape(costs.shape[0], -1)
    places = mx.argpartition(inside, count - 1, axis=-1)[:, :count]
    ids = mx.take_along_axis(blocks, places // GROUP, axis=1) * GROUP + places % GROUP
    return mx.sort(ids, axis=-1)
