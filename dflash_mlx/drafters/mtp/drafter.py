"""An MTP head as a drafter, which is compared with the texts that it reads."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.drafters.bound import Map
from dflash_mlx.drafters.feature_head import FeatureCache, FeatureDrafter
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.attention import Attention, install
from dflash_mlx.models.packed import PackedCache, PackedPass, PerSegment, Segment, wrap_ropes
from dflash_mlx.speculation.drafts import DraftBlock
from dflash_mlx.speculation.sampling import Draw

from .model import MTPHead, mask_of

BLOCK = 4  # rows: three drafts after the anchor
COMPARED = 64  # positions of a text that are compared at once
ENOUGH = 256  # positions to compare in all
FEW = 24  # compared positions from which they say something
NEARLY_NONE = 0.02  # of the compared positions


class Agreement:
    """How often a head's likeliest token is the next one of the texts that it reads.

    A head that is read wrongly raises no error, it only agrees with nothing.
    """

    def __init__(self) -> None:
        self.compared = 0
        self.agreed = 0
        self._pending: list[mx.array] = []  # one bool for each position

    def add(self, logits: mx.array, following: list[int]) -> None:
        """Compare logits [S, V] with the S tokens that follow; the host does not wait."""
        agree = mx.argmax(logits, axis=-1) == mx.array(following)
        mx.async_eval(agree)
        self._pending.append(agree)

    def settle(self) -> None:
        """Count what was compared before; call it in MLX's thread."""
        for agree in self._pending:
            self.compared += agree.size
            self.agreed += int(mx.sum(agree))
        self._pending = []


class MTPDrafter(FeatureDrafter):
    """A head that reads the target's hidden states after its final norm."""

    kind = "mtp"
    model: MTPHead

    def __init__(
        self,
        model: MTPHead,
        embed: Map,
        head: Map,
        head_type: mx.Dtype | None = None,
        taps: tuple[int, ...] = (),
        block_size: int = BLOCK,
    ):
        super().__init__(model, embed, head, head_type, taps)
        self.block_size = block_size
        self.agreement = Agreement()
        self._packed: PackedPass | None = None
        self._attention = Attention(Kernels)
        install([layer.self_attn for layer in model.layers], self._attention, lambda rows: None)
        wrap_ropes(model, lambda: self._packed)

    def row_bytes(self, item: int) -> int:
        config = self.config
        return (2 * config.num_key_value_heads * config.head_dim + config.hidden_size) * item

    def run(
        self, tokens: mx.array, before: mx.array, caches: Sequence[KVCache], counts: Sequence[int]
    ) -> mx.array:
        embeddings = self.embed(tokens)[None]
        masks = [mask_of(count, cache) for cache, count in zip(caches, counts, strict=True)]
        if len(caches) == 1:
            return self.model(embeddings, before, caches[0], masks[0])
        pairs = zip(caches, counts, strict=True)
        packed = PackedPass([Segment(cache.offset, count, None) for cache, count in pairs])
        self._packed = packed
        try:
            with self._attention.over([(count, None, None) for count in counts], packed):
                cache = PackedCache(packed, caches)
                return self.model(embeddings, before, cache, PerSegment(masks))
        finally:
            self._packed = None

    def draft(
        self,
        caches: Sequence[FeatureCache],
        anchors: Sequence[int],
        width: int,
        draws: Sequence[Draw | None] = (),
    ) -> list[DraftBlock]:
        self.agreement.settle()
        return super().draft(caches, anchors, width, draws)

    def read(
        self,
        caches: Sequence[Any],
        tokens: Sequence[list[int]],
        before: Sequence[mx.array],
    ) -> mx.array:
        """While the head is still compared with texts, each sequence is read on its own."""
        if self.agreement.compared >= ENOUGH:
            return super().read(caches, tokens, before)
        parts = zip(caches, tokens, before, strict=True)
        return mx.concatenate([self._read_and_compare(*part) for part in parts], axis=1)

    def _read_and_compare(
        self, cache: FeatureCache, tokens: list[int], before: mx.array
    ) -> mx.array:
        """The hidden state [1, 1, H] after the last of S tokens; the others are compared.

        The last ones are read in a pass of their own: only their hidden states are wanted.
        """
        first = max(0, len(tokens) - 1 - COMPARED)
        if first:
            super().read([cache], [tokens[:first]], [before[:, :first]])
        count = len(tokens) - first
        hidden = self.run(mx.array(tokens[first:]), before[:, first:], [cache.rows], [count])
        if count > 1:
            self.agreement.add(self.logits(hidden[:, :-1]), tokens[first + 1 :])
        return hidden[:, -1:]

    def suspect(self) -> str | None:
        agreed, compared = self.agreement.agreed, self.agreement.compared
        if compared < FEW or agreed > NEARLY_NONE * compared:
            return None
        return (
            "the head is not this target's, or its tensors are not what they seem: it agrees with "
            f"{agreed} of {compared} tokens of the texts themselves"
        )
