"""What a drafter says about the slots of one block, and the drafts taken from it.

A DFlash v1 drafter gives every slot a distribution of its own. A DFlash 2 drafter gives each slot a
few candidates and scores them by the token before, so its drafts are a walk from the anchor. Both
can be asked for the likeliest drafts, or for drafts drawn at random with what each was drawn from.
Does not know models, or how drafts are judged.
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from .sampling import Shaper


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens [γ], and what they were drawn from [γ, V] (None: not drawn)."""

    tokens: mx.array
    probabilities: mx.array | None = None


class Slots(Protocol):
    """The slots of one block, before anything is proposed for them."""

    def likeliest(self) -> Draft:
        """The greedy drafts."""
        ...

    def drawn(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Drafts at the shaper's temperature, after the tokens of the history."""
        ...


@dataclass(frozen=True, slots=True)
class Independent:
    """Logits [γ, V]: no slot looks at another one's draft."""

    logits: mx.array

    def likeliest(self) -> Draft:
        """Each slot's argmax."""
        return Draft(mx.argmax(self.logits, axis=-1))

    def drawn(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Each slot from its own distribution, shaped as the target's."""
        rows = shaper.penalise(self.logits, history, mx.zeros((0,), dtype=mx.int32))
        rows = shaper.shape(rows)
        return Draft(mx.random.categorical(rows, key=key), mx.softmax(rows, axis=-1))


@dataclass(frozen=True, slots=True)
class Lattice:
    """Candidates of each slot, scored for every candidate that may stand before (spec 3.3).

    candidates: [γ, k] token ids, ascending. scores: [γ, k, k] float32; [t, i, j] is the score of
    slot t's candidate j after candidate i of slot t - 1. Before slot 0 stands the anchor, and all
    its k rows are the same.
    """

    candidates: mx.array
    scores: mx.array
    vocab_size: int

    def likeliest(self) -> Draft:
        """The best candidate after the one just taken, slot by slot; the smaller id of equals."""
        return Draft(self._tokens(self._walk(mx.argmax(self.scores, axis=-1))))

    def drawn(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Each slot from softmax(score / temperature) over its candidates after the last draft.

        Every row of the lattice draws, and the walk takes the draws that it passes: the same law as
        drawing one slot after another. Neither filters nor penalties apply (spec 2.2).
        """
        rows = self.scores * (1 / shaper.params.temperature)
        path = self._walk(mx.random.categorical(rows, key=key))
        chances = mx.softmax(self.passed(path, rows), axis=-1)
        nothing = mx.zeros((path.shape[0], self.vocab_size))
        q = mx.put_along_axis(nothing, self.candidates, chances, axis=-1)
        return Draft(self._tokens(path), q)

    def passed(self, path: mx.array, rows: mx.array | None = None) -> mx.array:
        """The rows [γ, k] (of the scores) that a walk's places [γ] go through."""
        rows = self.scores if rows is None else rows
        before = mx.concatenate([mx.zeros_like(path[:1]), path[:-1]])
        return mx.take_along_axis(rows, before[:, None, None], axis=1)[:, 0]

    def _walk(self, choices: mx.array) -> mx.array:
        """Each row's choice [γ, k] -> the places [γ] of the candidates taken, from the anchor."""
        place, path = mx.array(0), []
        for row in choices:
            place = row[place]
            path.append(place)
        return mx.stack(path)

    def _tokens(self, path: mx.array) -> mx.array:
        return mx.take_along_axis(self.candidates, path[:, None], axis=-1)[:, 0]
