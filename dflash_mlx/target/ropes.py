"""Rotary embeddings of one model instance whose rows need not stand one after another.

The rows of a tree stand at their depths, those of a packed pass at the positions of several
sequences. Knows positions; does not know caches or masks.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE, ProportionalRoPE, SuScaledRoPE, YarnRoPE

from dflash_mlx.cpu.modules import SharedRope

from .packed import PackedPass
from .tree_pass import TreePass

# They take an offset for each element of a batch; others read their offset as a number.
BATCHED = (nn.RoPE, Llama3RoPE, ProportionalRoPE, SharedRope, SuScaledRoPE, YarnRoPE)
Current = Callable[[], TreePass | PackedPass | None]


class PassRope(nn.Module):
    """Stands in for a rotary embedding; `current` gives the pass that runs now.

    Without one, or where rows follow each other, nothing is different.
    """

    def __init__(self, rope: nn.Module, current: Current):
        super().__init__()
        self.rope = rope
        self._current = current

    def __call__(self, x: mx.array, offset: Any = 0, **options: Any) -> mx.array:
        """Rotate x [1, heads, R, d], whose first row stands at position `offset`."""
        return rotate(self.rope, x, offset, self._current(), options)


def rotate(
    rope: Any, x: mx.array, offset: Any, rows: TreePass | PackedPass | None, options: dict[str, Any]
) -> mx.array:
    """Rotate x [1, heads, R, d] by the positions of a pass's rows."""
    if rows is None:
        return rope(x, offset=offset, **options)
    packed = isinstance(rows, PackedPass)
    first: Any = 0 if packed else offset
    depths = rows.positions if packed else rows.depths
    if isinstance(rope, SharedRope) and rope.shares(x, first):
        return rope(x, offset=first, depths=depths)
    if isinstance(rope, BATCHED):  # a row an element of a batch: [R, heads, 1, d]
        each = rope(x.transpose(2, 1, 0, 3), offset=first + depths, **options)
        return each.transpose(2, 1, 0, 3)
    if packed:
        parts = zip(rows.split(x, axis=2), rows.segments, strict=True)
        found = [rotate(rope, part, seg.start, seg.tree, options) for part, seg in parts]
        return mx.concatenate(found, axis=2)
    levels = enumerate(rows.split(x.transpose(2, 1, 0, 3)))
    each = rows.join([rope(level, offset=offset + depth, **options) for depth, level in levels])
    return each.transpose(2, 1, 0, 3)


def wrap_ropes(model: nn.Module, current: Current) -> None:
    """Put a `PassRope` around every rotary embedding of one model instance."""
    wrapped: dict[int, PassRope] = {}
    for module in model.modules():
        if isinstance(module, (PassRope, SharedRope)):
            continue
        for name, child in module.children().items():
            if isinstance(child, (*BATCHED, nn.Module) if name == "rope" else BATCHED):
                module[name] = wrapped.setdefault(id(child), PassRope(child, current))
