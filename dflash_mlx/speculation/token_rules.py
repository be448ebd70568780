"""Which tokens an answer may not have at each of its places, whatever their logits.

A rule sets logits to -inf, at each row by the tokens that the row follows. So the target chooses
what it would choose in plain decoding, and drafts against a rule are rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .drafts import Draft


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules of one answer.

    allowed: the only tokens that it may have; empty for all. banned: tokens that it has nowhere.
    late: tokens that it has only after its first `min_tokens` tokens. words: sequences of tokens
    that it does not have.
    """

    allowed: tuple[int, ...] = ()
    banned: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    min_tokens: int = 0
    words: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.allowed or self.banned or self.min_tokens or self.words)

    @property
    def longest(self) -> int:
        return max(map(len, self.words), default=0)

    def apply(self, rows: mx.array, answer: Sequence[int], position: int, draft: Draft) -> mx.array:
        """Rows [R, V] of the anchor and its drafts, with -inf for tokens against a rule.

        `answer`: its last tokens, at least as many as the longest of `words`; `position`: how many
        tokens it has. A row to which a rule would leave no token stays without the rule.
        """
        vocab = rows.shape[-1]
        if self.allowed:
            others = np.ones((1, vocab), dtype=bool)
            others[:, list(self.allowed)] = False
            rows = without(rows, others)
        banned = [self._banned(answer, position, path) for path in self._paths(draft)]
        if any(banned):
            mask = np.zeros((len(banned), vocab), dtype=bool)
            for row, tokens in enumerate(banned):
                mask[row, [token for token in tokens if token < vocab]] = True
            rows = without(rows, mask)
        return rows

    def _paths(self, draft: Draft) -> list[tuple[int, ...]]:
        """The drafts that each row follows. Waits for a chain only if its tokens matter."""
        if draft.tree is not None:
            return draft.tree.paths()
        tokens = [0] * draft.drafted
        if self.words:
            tokens = np.array(draft.tokens).tolist()
        return [tuple(tokens[:count]) for count in range(draft.drafted + 1)]

    def _banned(self, answer: Sequence[int], position: int, path: tuple[int, ...]) -> set[int]:
        banned = set(self.banned)
        if position + len(path) < self.min_tokens:
            banned |= self.late
        before = (*answer, *path)
        for *start, last in self.words:
            if not start or before[-len(start) :] == tuple(start):
                banned.add(last)
        return banned


def without(rows: mx.array, mask: np.ndarray) -> mx.array:
    """Rows with -inf where the mask is true; a row that would have no token left stays."""
    masked = mx.where(mx.array(mask), mx.array(-mx.inf, dtype=rows.dtype), rows)
    lost = mx.max(masked, axis=-1, keepdims=True) == -mx.inf
    return mx.where(lost, rows, masked)
