"""One pass over the rows of several sequences, packed into one [1, R] batch.

Norms, projections, experts and the head see R rows and read their weights once. Attention and
recurrences go sequence by sequence, each over its own cache: nothing is padded, and no cache is
rolled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE, ProportionalRoPE, SuScaledRoPE, YarnRoPE

from dflash_mlx.cpu.modules import SharedRope
from dflash_mlx.speculation.tree import Tree

from .cache.target_cache import TargetCache
from .cache.tree_pass import TreePass
from .parts import Wrapper, call_of


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One sequence's input to a pass: tokens [S] that follow those in its `cache`.

    The tokens follow one another, or they are the anchor and the nodes of a `tree`. tape: whether
    the caches can rewind into the pass. last: whether only the last row's logits are computed.
    """

    cache: TargetCache
    tokens: mx.array
    tree: Tree | None = None
    tape: bool = True
    last: bool = False


@dataclass(frozen=True, slots=True)
class SequencePass:
    """One sequence's output: logits [S, V], or [1, V] of its last row, and taps [1, S, D].

    D is the number of tapped layers times the target's hidden size.
    """

    logits: mx.array
    taps: mx.array


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` rows from position `start` on; without a `tree` each follows the row before it."""

    start: int
    count: int
    tree: TreePass | None


class PackedPass:
    def __init__(self, segments: Sequence[Segment]):
        self.segments = tuple(segments)
        depths = [
            seg.start + (mx.arange(seg.count) if seg.tree is None else seg.tree.depths)
            for seg in self.segments
        ]
        self.depths = mx.concatenate(depths)  # [R]: positions, as if a tree began at 0
        self._ends = [0]
        for seg in self.segments:
            self._ends.append(self._ends[-1] + seg.count)

    @property
    def rows(self) -> int:
        return self._ends[-1]

    def split(self, x: mx.array, axis: int) -> list[mx.array]:
        """An array with R entries along an axis -> each segment's."""
        return list(mx.split(x, self._ends[1:-1], axis=axis))


class PerSegment(list[Any]):
    """Keys, values or masks of a packed pass, one for each segment; layers only pass them on."""

    @property
    def dtype(self) -> mx.Dtype:
        return self[0].dtype

    def astype(self, dtype: mx.Dtype) -> "PerSegment":
        return PerSegment(part.astype(dtype) for part in self)


class PackedCache:
    """One layer's caches in a packed pass, in the form of the one cache that mlx-lm's layers take.

    `members` are mlx-lm's caches of that layer, one for each segment.
    """

    def __init__(self, packed: PackedPass, members: Sequence[Any]):
        self.packed = packed
        self.members = list(members)

    def __getitem__(self, place: int) -> "PackedCache":
        """One of the caches of a layer that has several."""
        return PackedCache(self.packed, [member[place] for member in self.members])

    @property
    def offset(self) -> mx.array:
        """The positions of all rows [R], which rotary embeddings take as their offset."""
        return self.packed.depths

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> PerSegment | None:
        """Each segment's own mask; None if no cache makes one."""
        assert self.packed.rows == N
        masks = PerSegment(
            member.make_mask(seg.count, return_array=return_array, window_size=window_size)
            for member, seg in zip(self.members, self.packed.segments, strict=True)
        )
        return None if all(mask is None for mask in masks) else masks

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PerSegment, PerSegment]:
        """Add keys and values [1, Hkv, R, D] to the caches; returns the contents of each."""
        parts = zip(self.packed.split(keys, 2), self.packed.split(values, 2), strict=True)
        pairs = [
            member.update_and_fetch(*part) for member, part in zip(self.members, parts, strict=True)
        ]
        return PerSegment(k for k, _ in pairs), PerSegment(v for _, v in pairs)

    def keys_and_values(self) -> tuple[PerSegment, PerSegment]:
        """The rows that an earlier layer read in this pass."""
        pairs = [member.keys_and_values() for member in self.members]
        return PerSegment(k for k, _ in pairs), PerSegment(v for _, v in pairs)


# Rotary embeddings of one model instance, for rows that are not at successive positions.

# These accept an offset for each element of a batch; others accept only a number.
BATCHED = (nn.RoPE, Llama3RoPE, ProportionalRoPE, SharedRope, SuScaledRoPE, YarnRoPE)
Current = Callable[[], TreePass | PackedPass | None]


class PassRope(Wrapper):
    """Wraps a rotary embedding, so that rows of trees and packed passes get their own positions.

    `current` returns such a pass; without one (None) the embedding runs as usual.
    """

    def __init__(self, rope: nn.Module, current: Current):
        super().__init__(rope)
        self._current = current

    def __call__(self, x: mx.array, offset: Any = 0, **options: Any) -> mx.array:
        """Rotate x [1, heads, R, d], whose first row is at position `offset`."""
        return rotate(self["plain"], x, offset, self._current(), options)


def rotate(
    rope: Any, x: mx.array, offset: Any, rows: TreePass | PackedPass | None, options: dict[str, Any]
) -> mx.array:
    """Rotate x [1, heads, R, d] by the positions of a pass's rows."""
    if rows is None:
        return rope(x, offset=offset, **options)
    packed = isinstance(rows, PackedPass)
    first: Any = 0 if packed else offset
    if isinstance(rope, SharedRope) and rope.shares(x, first):
        return rope(x, offset=first, depths=rows.depths)
    if isinstance(rope, BATCHED):  # each row is an element of a batch: [R, heads, 1, d]
        rotated = rope(x.transpose(2, 1, 0, 3), offset=first + rows.depths, **options)
        return rotated.transpose(2, 1, 0, 3)
    if packed:
        parts = zip(rows.split(x, axis=2), rows.segments, strict=True)
        rotated = [rotate(rope, part, seg.start, seg.tree, options) for part, seg in parts]
        return mx.concatenate(rotated, axis=2)
    levels = enumerate(rows.split(x.transpose(2, 1, 0, 3)))
    parts = [rope(level, offset=offset + depth, **options) for depth, level in levels]
    return rows.join(parts).transpose(2, 1, 0, 3)


def wrap_ropes(model: nn.Module, current: Current) -> None:
    """Put a `PassRope` around every rotary embedding of one model instance."""
    wrapped: dict[int, PassRope] = {}
    for module in model.modules():
        if isinstance(module, (PassRope, SharedRope)):
            continue
        for name, child in module.children().items():
            if isinstance(child, PassRope):
                module[name] = PassRope(child["plain"], current)
            elif isinstance(child, BATCHED) or takes_offset(child):
                module[name] = wrapped.setdefault(id(child), PassRope(child, current))


def takes_offset(child: Any) -> bool:
    """Whether a module is a rotary embedding: it is called with rows and an offset alone."""
    call = call_of(type(child))
    if not isinstance(child, nn.Module) or call is None:
        return False
    return [*signature(call).parameters][1:3] == ["x", "offset"]
