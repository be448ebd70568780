"""What every class of layer caches has to be able to do; one adapter a class.

A cache belongs to one layer of one sequence. An adapter holds no state. It knows its class of
caches, not when something is asked of it; `target_cache.py` decides that for all layers together.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from dflash_mlx.target.tree_pass import TreePass


class Adapter(Protocol):
    """What one class of mlx-lm's caches does to go back, to keep a path, to be saved and filled."""

    @property
    def goes_anywhere(self) -> bool:
        """Whether a cache can go back to just any token by itself; else snapshots are needed."""
        ...

    def can_rewind(self, cache: Any, length: int) -> bool:
        """Whether a cache can go back to `length` tokens, at most its offset, by itself."""
        ...

    def rewind(self, caches: Sequence[Any], length: int) -> None:
        """Let the caches of one sequence's layers go back, as `can_rewind` has allowed."""
        ...

    def can_keep_path(self, cache: Any) -> bool:
        """Whether a cache can keep some of the newest rows."""
        ...

    def keep_path(self, caches: Sequence[Any], rows: tuple[int, ...], count: int) -> None:
        """Of the newest `count` rows, those of a tree, keep `rows`: a path from the anchor's, 0."""
        ...

    def save(self, cache: Any) -> tuple[mx.array, ...]:
        """Copies of what a cache that has read something needs to go on from here."""
        ...

    def load(self, cache: Any, part: tuple[mx.array, ...], length: int) -> None:
        """Put a cache back to what `save` gave after `length` tokens."""
        ...

    def fill(self, cache: Any, depth: int) -> None:
        """Make a cache that has read something look as if it had read `depth` tokens, for timing.

        Its rows are zeros. It cannot go back behind them.
        """
        ...

    def begin_tree(self, cache: Any, tree: TreePass) -> None:
        """The next pass reads a tree: every row sees its own path."""
        ...

    def end_tree(self, cache: Any) -> None:
        """The pass over a tree is over."""
        ...
