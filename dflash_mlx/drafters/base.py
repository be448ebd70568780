"""The interface of drafters and of their caches, as the engine uses them.

A DFlash drafter, an EAGLE-3 head and an MTP head read the target's hidden states, a Gemma assistant
also its keys and values; a small model reads the tokens, and prompt lookup copies them without a
model.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.options import AcceptanceRule
from dflash_mlx.speculation.drafts import DraftBlock
from dflash_mlx.speculation.sampling import Draw


class DraftCache(Protocol):
    """A drafter's cache for the committed tokens of one sequence."""

    @property
    def offset(self) -> int: ...

    @property
    def state(self) -> list[Any]:
        """The arrays to evaluate after `append`."""
        ...

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit the next S tokens, with their taps [1, S, K * Ht]. Drafters read one or both."""

    def rewind(self, length: int) -> None: ...

    def fork(self) -> "DraftCache": ...

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """Each layer's rows of the tokens [start, end), in arrays of their own."""
        ...

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int]) -> None:
        """Append rows from `copy_rows`, as if their tokens had been committed."""


class Drafter(Protocol):
    """Drafts blocks for sequences, each of which has a cache of its own.

    kind: its name for `dflash bench --drafts`. model: its `nn.Module`, which may be a part of the
    target's own checkpoint; None only for prompt lookup: it has no files, its drafts cost nothing,
    and it reads answers without drafts, too. config: its settings, None without a model.
    block_size: rows of a block, anchor included, unless a request or the policy chooses another
    number. taps: the target's layers whose outputs it reads, as `Target.tap` numbers them. accept:
    the acceptance rule that gives sampled answers without a seed the most tokens per second.
    """

    kind: str
    model: Any
    config: Any
    block_size: int
    taps: tuple[int, ...]
    accept: AcceptanceRule = "match"

    def row_bytes(self, item: int) -> int:
        """Bytes of one token in its cache, with numbers of `item` bytes."""
        ...

    def make_cache(self) -> Any: ...

    def follow(self, cache: Any, target: TargetCache) -> None:
        """Let one of its caches read the target's cache of the same sequence; few drafters do."""

    def preview(self, cache: Any, anchor: int, width: int) -> Sequence[float] | None:
        """The confidence [γ] of the drafts after an anchor, if it is known without drafting.

        Empty if there is nothing to draft; None if the drafter has to draft to know.
        """
        return None

    def draft(
        self,
        caches: Sequence[Any],
        anchors: Sequence[int],
        width: int,
        draws: Sequence[Draw | None] = (),
    ) -> list[DraftBlock]:
        """A block of `width` rows after each anchor; evaluates nothing.

        draws: what the drafts of each sequence will be drawn with, if they are drawn. Drafters that
        make one token after another have to know it at once.
        """
        ...

    def suspect(self) -> str | None:
        """The likely cause if the target accepts nothing, where the drafter has seen signs of it.

        A part of a sentence. None if it has seen none.
        """
        return None
