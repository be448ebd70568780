"""What a drafter in training is to the trainer: the interface of its kinds.

A `Plan` says before the target has answered what will be trained, and makes the `Student` from the
answers. A student computes what its drafter computes in decoding, for many blocks at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.dflash.model import KeysValues
from dflash_mlx.models.target import Target

from .data import TrainingSequence
from .memory import BlockSizes
from .settings import DrafterShape


@dataclass(frozen=True, slots=True)
class Text:
    """n sequences that are learned from, padded: taps [n, S, K * Ht], tokens [n, L], lengths [n].

    The taps end before the last anchor at the earliest.
    """

    taps: mx.array
    tokens: mx.array
    lengths: mx.array

    def rows(self, rows: mx.array) -> "Text":
        return Text(self.taps[rows], self.tokens[rows], self.lengths[rows])

    def tokens_at(self, positions: mx.array) -> mx.array:
        """The tokens at positions [n, ...]; those of padding are any."""
        at = mx.clip(positions, 0, self.tokens.shape[1] - 1).reshape(len(positions), -1)
        return mx.take_along_axis(self.tokens, at, axis=1).reshape(positions.shape)

    def labels(self, anchors: mx.array, count: int) -> tuple[mx.array, mx.array]:
        """The `count` tokens after each anchor [n, m], and whether they count: [n, m, count] both.

        The anchor -1 is padding. Tokens after the end of a sequence do not count.
        """
        positions = anchors[..., None] + mx.arange(1, count + 1)
        counts = (anchors[..., None] >= 0) & (positions < self.lengths[:, None, None])
        return self.tokens_at(positions), counts


class Student(Protocol):
    """A drafter in training.

    anchors: positions [n, m] of m blocks in each sequence of a text, -1 for padding. A block drafts
    the B - 1 tokens after its anchor. The context is what the blocks of a sequence share: the keys
    and values [n, nKV, S, d] of each layer, at all positions that have taps.
    """

    @property
    def drafter(self) -> Drafter: ...

    def context(self, text: Text) -> list[KeysValues]: ...

    def losses(
        self, context: list[KeysValues], text: Text, anchors: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Cross-entropies in nats, and 0/1 weights of valid positions: float32 [n, m, B - 1]."""
        ...

    def drafts(self, context: list[KeysValues], text: Text, anchors: mx.array) -> mx.array:
        """The likeliest drafts [n, m, B - 1]; a draft after a wrong one may be any token."""
        ...


class Plan(Protocol):
    """The drafter that a run will train: of the shape that is asked for, or the one in `warm`.

    raw: its config.json, which `make` completes. taps: the target's layers that it reads, as
    `Target.tap` numbers them. mask_token_id: the token that stands for a draft, after `make`; None
    if the kind has none.
    """

    raw: dict[str, Any]
    taps: tuple[int, ...]

    def __init__(
        self, target: Target, shape: DrafterShape, warm: Path | None, mask_token: int | None
    ):
        """Raises UsageError for a shape that is not possible, DFlashError for a wrong `warm`."""

    @property
    def mask_token_id(self) -> int | None: ...

    def sizes(self) -> BlockSizes: ...

    def untrained(self) -> nn.Module:
        """A model with random weights, which are never computed; frozen parts are frozen."""
        ...

    def answerer(self) -> Drafter | None:
        """The drafter in `warm`, if any."""
        ...

    def make(
        self,
        tokenizer: TokenizerWrapper,
        whole: Sequence[TrainingSequence],
        trained: Sequence[TrainingSequence],
        seed: int,
        begun: dict[str, Any] | None,
    ) -> Student:
        """The drafter that the run begins with; taps the target.

        whole: all sequences, of which some are trained on. begun: `raw` of a run that is resumed.
        """
        ...
