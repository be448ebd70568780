"""An MTP head as a drafter: its caches and its blocks.

It drafts one token after another, each in a pass of its one layer, and one sequence after another.
The rows of drafts come from the head's own hidden states and are always dropped: those of committed
tokens are computed from the target's.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.chain import ChainBlock
from dflash_mlx.drafters.feature_cache import FeatureCache
from dflash_mlx.speculation.drafts import DraftBlock

from .model import BoundHead, MTPHead

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

    @property
    def wants_more(self) -> bool:
        return self.compared < ENOUGH

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

    @property
    def is_nearly_none(self) -> bool:
        """Whether the head nearly never agreed; with random texts none does."""
        return self.compared >= FEW and self.agreed <= NEARLY_NONE * self.compared


class MTPCache(FeatureCache):
    """One sequence's rows, and the target's hidden states."""

    def __init__(self, source: "MTPDrafter"):
        super().__init__()
        self.source = source
        self._is_text = True

    def features(self, taps: mx.array) -> mx.array:
        return self.source.head.enter(taps)

    def write(self, tokens: list[int], features: mx.array) -> None:
        self._run(tokens, features)

    def empty(self) -> "MTPCache":
        return MTPCache(self.source)

    def fill(self, depth: int) -> None:
        super().fill(depth)
        self._is_text = False

    def chain(
        self, anchor: int, count: int, choose: Callable[[mx.array], mx.array]
    ) -> tuple[mx.array, mx.array]:
        """Drafts [γ] after the anchor, each by `choose(logits [1, V])`, and their logits [γ, V].

        The rows of waiting tokens are computed in the first pass, with the anchor's.
        """
        waiting: list[int] = []
        before: list[mx.array] = []
        if self._tokens:
            waiting, features = self.take_waiting()
            before.append(features)
        before.append(self.last_feature())
        hidden = self._run([*waiting, anchor], mx.concatenate(before, axis=1))
        head = self.source.head
        committed = self.rows.offset - 1
        tokens = list[mx.array]()
        rows = list[mx.array]()
        try:
            for number in range(count):
                if number:
                    hidden = head(tokens[-1], hidden, self.rows)
                rows.append(head.logits(hidden))
                tokens.append(choose(rows[-1]))
        finally:
            self.rows.trim(self.rows.offset - committed)
        return mx.concatenate(tokens), mx.concatenate(rows)

    def _run(self, tokens: list[int], before: mx.array) -> mx.array:
        """Compute the rows of S tokens; returns the normed hidden state [1, 1, H] after the last.

        While the head is still compared with the text, the last rows run in a pass of their own:
        only their hidden states are wanted.
        """
        head = self.source.head
        agreement = self.source.agreement
        ids = mx.array(tokens)
        count = min(len(tokens) - 1, COMPARED)
        first = len(tokens) - 1 - count
        if not (count and agreement.wants_more and self._is_text):
            return head(ids, before, self.rows)[:, -1:]
        if first:
            head(ids[:first], before[:, :first], self.rows)
        hidden = head(ids[first:], before[:, first:], self.rows)
        agreement.add(head.logits(hidden[:, :-1]), tokens[first + 1 :])
        return hidden[:, -1:]


class MTPDrafter(Drafter):
    """A bound head that reads the target's hidden states after its final norm."""

    block_size = BLOCK

    def __init__(self, head: BoundHead, final_norm: int):
        """`final_norm` is the number of that tap."""
        self.head = head
        self.model: MTPHead = head.model
        self.config = head.model.config
        self.taps: tuple[int, ...] = (final_norm,)
        self.agreement = Agreement()

    def row_bytes(self, item: int) -> int:
        config = self.config
        return (2 * config.num_key_value_heads * config.head_dim + config.hidden_size) * item

    def make_cache(self) -> MTPCache:
        return MTPCache(self)

    def draft(
        self, caches: Sequence[MTPCache], anchors: Sequence[int], width: int
    ) -> list[DraftBlock]:
        self.agreement.settle()
        pairs = zip(caches, anchors, strict=True)
        return [ChainBlock(cache, anchor, width - 1) for cache, anchor in pairs]

    def suspect(self) -> str | None:
        agreement = self.agreement
        if not agreement.is_nearly_none:
            return None
        return (
            f"the head is not this target's, or its tensors are not what they seem: it agrees with "
            f"{agreement.agreed} of {agreement.compared} tokens of the texts themselves"
        )
