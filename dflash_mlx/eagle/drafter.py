"""An EAGLE-3 head as what drafts: its caches and its blocks.

It drafts one token after another, each in a pass of its one layer, sequences one after another.
Rows of drafts never stay: the target's features take their place when tokens are committed. Does
not know how drafts are accepted.
"""

from collections.abc import Sequence

from dflash_mlx.speculation.drafts import DraftBlock

from .block import EagleBlock
from .cache import EagleCache
from .config import EagleConfig
from .head import BoundHead
from .model import EagleModel

BLOCK = 9  # rows: eight drafts after the anchor, the depth of the authors' trees


class EagleDrafter:
    """A bound head that reads the outputs of the target's layers `taps`; a `DraftSource`."""

    block_size = BLOCK

    def __init__(self, head: BoundHead, taps: tuple[int, ...]):
        self.head, self.taps = head, taps

    @property
    def model(self) -> EagleModel:
        """Its weights."""
        return self.head.model

    @property
    def config(self) -> EagleConfig:
        """Its sizes."""
        return self.head.config

    def row_bytes(self, item: int) -> int:
        """What a token takes in a cache, in numbers of `item` bytes."""
        config = self.config
        return (2 * config.num_kv_heads * config.head_dim + config.hidden_size) * item

    def make_cache(self) -> EagleCache:
        """An empty cache."""
        return EagleCache(self.head)

    def draft(
        self, caches: Sequence[EagleCache], anchors: Sequence[int], width: int
    ) -> list[DraftBlock]:
        """A block of `width` rows after each anchor; evaluates nothing."""
        return [EagleBlock(*each, width - 1) for each in zip(caches, anchors, strict=True)]
