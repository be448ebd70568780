"""What drafts come from, as the engine sees it: blocks for sequences, and a cache for each.

A DFlash drafter reads the target's hidden states, a small model the tokens, an n-gram drafter the
tokens without a model. `model` may be a part of the target's own checkpoint.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.speculation.drafts import DraftBlock


class DraftCache(Protocol):
    """What a source keeps of one sequence's committed tokens."""

    @property
    def offset(self) -> int:
        """Tokens that were committed."""
        ...

    @property
    def state(self) -> list[Any]:
        """The arrays to evaluate after `append`."""
        ...

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit the next S tokens by their taps [1, S, K * Ht], or by themselves."""
        ...

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        ...

    def fork(self) -> "DraftCache":
        """A copy that goes on by itself."""
        ...

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """Each layer's rows of the tokens from `start` to before `end`."""
        ...

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int] = ()) -> None:
        """Go on as if the tokens of these rows had been committed."""
        ...

    def fill(self, depth: int) -> None:
        """Look as if `depth` tokens had been committed, for timing."""
        ...


class Drafter(Protocol):
    """What drafts: a model, or something that needs none."""

    @property
    def model(self) -> Any:
        """Its `nn.Module`; None where it has none: drafting then takes no time of the device."""
        ...

    @property
    def config(self) -> Any:
        """What its costs depend on beside the weights."""
        ...

    @property
    def block_size(self) -> int:
        """Rows of a block, the anchor's included, where nobody says otherwise."""
        ...

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's layers whose outputs it reads."""
        ...

    def row_bytes(self, item: int) -> int:
        """What a token takes in a cache of its, in numbers of `item` bytes."""
        ...

    def make_cache(self) -> Any:
        """An empty cache."""
        ...

    def preview(self, cache: Any, anchor: int, width: int) -> Sequence[float] | None:
        """The confidence [γ] of the drafts after an anchor, where that is known before drafting.

        Empty where there is nothing to draft; None where the drafter has to draft to know.
        """
        ...

    def draft(self, caches: Sequence[Any], anchors: Sequence[int], width: int) -> list[DraftBlock]:
        """A block of `width` rows after each anchor; evaluates nothing."""
        ...
