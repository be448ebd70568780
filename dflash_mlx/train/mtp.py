"""An MTP head in training: its blocks, their losses and drafts, and the head a run begins with.

As in decoding, the first draft of a block is made from the target's hidden state, and each later
one from the head's own; the tokens that it reads are the sequence's. The target's hidden states
make the rows of all earlier tokens. Rows are computed by the head itself (`MTPHead`), for all
blocks of several sequences at once: only the layer's cache and its rotary embedding are others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.drafters.dflash.model import KeysValues
from dflash_mlx.drafters.mtp import load as mtp
from dflash_mlx.drafters.mtp.drafter import MTPDrafter
from dflash_mlx.drafters.mtp.model import LAYERS, MTPHead
from dflash_mlx.drafters.mtp.tensors import read_head
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.formats import TRAINED_MTP
from dflash_mlx.models.precision import is_quantised
from dflash_mlx.models.target import Target

from .data import Text, TrainingSequence
from .loss import cross_entropy
from .memory import BlockSizes
from .new_drafter import layer_sizes, level_logits
from .settings import DrafterShape


class HeldRows:
    """Stands in for the layer's cache: keys and values [n, nKV, S, d] of n sequences, and new ones.

    offset: the positions of the new rows, [n, R] or the first of successive ones.
    """

    def __init__(self, offset: int | mx.array, held: KeysValues | None = None):
        self.offset = offset
        self.held = held

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> KeysValues:
        if self.held is not None:
            keys = mx.concatenate([self.held[0], keys], axis=2)
            values = mx.concatenate([self.held[1], values], axis=2)
        self.held = keys, values
        return self.held


class RowRope(nn.Module):
    """Wraps a rotary embedding, so that each row of a sequence can have a position of its own."""

    def __init__(self, rope: nn.Module):
        super().__init__()
        self.rope = rope

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """Rotate x [n, heads, R, d] at positions [n, R]; other offsets as the embedding itself."""
        if not isinstance(offset, mx.array) or offset.ndim < 2:
            return self.rope(x, offset=offset)
        count, heads, rows, dim = x.shape
        single = x.swapaxes(1, 2).reshape(-1, heads, 1, dim)  # every row is an element of a batch
        rotated = self.rope(single, offset=offset.reshape(-1))
        return rotated.reshape(count, rows, heads, dim).swapaxes(1, 2)


@dataclass(frozen=True, slots=True)
class MTPStudent:
    """See `DFlashStudent`; its context is the keys and values of the only layer."""

    drafter: MTPDrafter

    def context(self, text: Text) -> list[KeysValues]:
        """The outputs of these rows are not used, and so never computed."""
        rows = text.taps.shape[1]
        before = mx.pad(text.taps, [(0, 0), (1, 0), (0, 0)])[:, :rows]
        held = HeldRows(0)
        self._read(text.tokens[:, :rows], before, held, None)
        assert held.held is not None
        return [held.held]

    def losses(
        self, context: list[KeysValues], text: Text, anchors: mx.array
    ) -> tuple[mx.array, mx.array]:
        labels, counts = text.labels(anchors, self.drafter.block_size - 1)
        hidden = self.hidden(context, text, anchors)
        rows = hidden.reshape(-1, hidden.shape[-1])
        (losses,) = cross_entropy(self.drafter.own_logits, rows, labels.reshape(-1))
        return losses.reshape(counts.shape), counts.astype(mx.float32)

    def drafts(self, context: list[KeysValues], text: Text, anchors: mx.array) -> mx.array:
        return mx.argmax(self.drafter.own_logits(self.hidden(context, text, anchors)), axis=-1)

    def hidden(self, context: list[KeysValues], text: Text, anchors: mx.array) -> mx.array:
        """Hidden states [n, m, B - 1, H] whose logits are those of the drafts."""
        (held,) = context
        anchors = mx.maximum(anchors, 0)
        sequences = mx.arange(len(anchors))[:, None]
        before = text.taps[sequences, mx.maximum(anchors - 1, 0)]
        places = mx.arange(held[0].shape[2])
        # Row 0 has no hidden state before it; decoding never attends to it either.
        seen = (places > 0) & (places < anchors[..., None])
        count = anchors.shape[1]
        own = mx.broadcast_to(mx.eye(count, dtype=mx.bool_), (len(anchors), count, count))
        states = list[mx.array]()
        rows = HeldRows(anchors, held)
        for step in range(self.drafter.block_size - 1):
            rows.offset = anchors + step
            seen = mx.concatenate([seen, own], axis=-1)  # a block sees its own earlier rows only
            before = self._read(text.tokens_at(rows.offset), before, rows, seen[:, None])
            states.append(before)
        return mx.stack(states, axis=2)

    def _read(
        self, tokens: mx.array, before: mx.array, rows: HeldRows, mask: mx.array | None
    ) -> mx.array:
        """Tokens [n, R] with the hidden states [n, R, H] before them -> hidden states [n, R, H]."""
        drafter = self.drafter
        return drafter.model(drafter.embed(tokens), drafter.features(before), rows, mask)


# The head that a run begins with


class MTPPlan:
    """See `DFlashPlan`: a head of one layer."""

    mask_token_id = None

    def __init__(
        self, target: Target, shape: DrafterShape, warm: Path | None, mask_token: int | None
    ):
        assert mask_token is None
        self._target = target
        self._warm = None if warm is None else Checkpoint.read(warm)
        self.taps = (target.layers,)
        if self._warm is None:
            self.raw = {
                "architectures": ["Qwen3MTPDraftModel"],
                "model_type": TRAINED_MTP,
                **layer_sizes(target, shape),
                "num_hidden_layers": 1,
                "block_size": shape.rows,
            }
            return
        self.raw = self._warm.config
        if self._warm.format != "mtp":
            raise DFlashError(
                f"'{self._warm.name}' is no folder of an MTP head.",
                hint="start from one, or from nothing; or leave --kind mtp out",
            )
        mtp.check(self._warm, target.checkpoint)
        if is_quantised(self.untrained()):
            raise DFlashError(
                f"the head in '{self._warm.name}' is quantised, so it cannot be trained.",
                hint="start from one in 16 or 32 bits, or from nothing",
            )

    def sizes(self) -> BlockSizes:
        config = self.untrained().config
        return BlockSizes(
            mtp.block_size_of(self.raw),
            1,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.intermediate_size,
        )

    def untrained(self) -> MTPHead:
        if self._warm is not None:
            return mtp.head_for(self._warm, self._target.config, read_head(self._warm))
        kind = LAYERS[TRAINED_MTP]
        return MTPHead(kind.arguments.from_dict(self.raw), kind.layer)

    def answerer(self) -> MTPDrafter | None:
        return None if self._warm is None else mtp.load(self._warm, self._target)

    def make(
        self,
        tokenizer: TokenizerWrapper,
        whole: Sequence[TrainingSequence],
        trained: Sequence[TrainingSequence],
        seed: int,
        begun: dict[str, Any] | None,
    ) -> MTPStudent:
        target = self._target
        drafter = self.answerer()
        if drafter is None:
            target.tap(self.taps)
            mx.random.seed(seed)
            parts = self.untrained(), target.embed, target.head
            block = self.raw["block_size"]
            drafter = MTPDrafter(*parts, taps=(target.layers,), block_size=block)
            level_logits(drafter.model.norm, drafter.own_logits)
        model = drafter.model
        model.set_dtype(mx.float32)
        restore_modules(model)
        attention: Any = model.layers[0].self_attn
        attention.rope = RowRope(attention.rope)
        mx.eval(model.parameters())
        return MTPStudent(drafter)
