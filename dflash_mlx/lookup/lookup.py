"""Prompt lookup: drafts copied from an earlier place where the text said what it says now.

Summaries quote, edits repeat code, tables repeat rows; no model is needed to guess that the text
goes on as it did. The idea is Saxena's "prompt lookup decoding" (2023), here over prompt,
conversation and answer. Does not know models, or whether a copy pays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.sampling import Shaper
from dflash_mlx.speculation.tree import Ranked

from .suffix_automaton import SuffixAutomaton

BLOCK = 16  # rows of a block of copies where no drafter says how many, the anchor's included
LEAST = 2  # tokens that must have occurred before; one alone says nearly nothing


class Lookup:
    """Looks for one text's end in what stands before it; the text only grows."""

    def __init__(self) -> None:
        self._runs = SuffixAutomaton()

    def look(self, tokens: Sequence[int], anchor: int) -> bool:
        """Whether the end of a text occurred before: the tokens that are read, and the anchor."""
        known = len(self._runs.tokens)
        self._runs.extend((*tokens[known:], anchor) if known <= len(tokens) else ())
        return self.found

    @property
    def found(self) -> bool:
        """Whether it did when it was last looked for."""
        return self._runs.matched >= LEAST

    def block(self, width: int) -> "CopiedBlock":
        """Drafts for the `width` - 1 positions after the anchor, which follow what was found."""
        return CopiedBlock(self._runs, width - 1)


@dataclass(frozen=True, slots=True)
class CopiedBlock:
    """What the earlier places say of the next γ positions; a `DraftBlock`."""

    runs: SuffixAutomaton
    positions: int

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """What followed in the newest place."""
        return Draft(mx.array(self.runs.continuation(self.positions), dtype=mx.int32))

    def sample(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """The same: drawn from a distribution that knows nothing else."""
        tokens = self.greedy().tokens
        return Draft(tokens, mx.ones((tokens.size, 1)), tokens[:, None])

    def confidence(self) -> Callable[[], np.ndarray]:
        """How likely copies are, by the length of what they follow; a policy learns how far."""
        lengths = self.runs.matched + np.arange(self.positions)
        return lambda: chance(lengths).astype(np.float32)

    def top_tokens(self, count: int) -> "Continuations":
        """All that has followed, in any of the earlier places."""
        return Continuations(self.runs, self.positions)


@dataclass(frozen=True, slots=True)
class Continuations:
    """`Candidates` of a tree: a case is a state of the automaton."""

    runs: SuffixAutomaton
    positions: int

    def begin(self) -> None:
        """Nothing is to be computed."""

    def to_host(self) -> "Continuations":
        """They are there."""
        return self

    def after(self, position: int, case: int) -> Ranked:
        """What has followed: the newest first, and each older half as likely.

        After the anchor also what has followed fewer of the last tokens.
        """
        runs, found = self.runs, dict[int, int]()
        for state in runs.suffixes(runs.match, LEAST) if position == 0 else (case,):
            for token, then in runs.following(state):
                found.setdefault(token, then)
        first = float(chance(np.array(runs.matched + position)))
        older = (log(1 - first) - rank * log(2) for rank in range(1, len(found)))
        return [log(first), *older][: len(found)], [*found], [*found.values()]


def chance(lengths: np.ndarray) -> np.ndarray:
    """The first guess of how likely a text goes on as it did after so many equal tokens."""
    return lengths / (lengths + 2)
