"""Prompt lookup: drafts are copied from an earlier place with the same last tokens.

Summaries quote, edits repeat code, tables repeat rows, so text often continues as it did before.
This is Saxena's "prompt lookup decoding" (2023) over the prompt, the conversation and the answer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log

import mlx.core as mx
import numpy as np

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.speculation.drafts import Draft, DraftBlock
from dflash_mlx.speculation.sampling import Draw
from dflash_mlx.speculation.tree import Ranked

# All n-grams of a text, and the tokens that follow them

RECENT = 16  # suffixes of the text whose newest place is updated with each token


class SuffixAutomaton:
    """All n-grams of `tokens`. A state stands for n-grams that end at the same places.

    State 0 is the empty n-gram. `match` is the state of the longest suffix of the text that also
    occurs earlier, `matched` its length (0 if there is none), and `continues_at` the index of the
    token that followed it, in the newest place that is known.
    """

    def __init__(self, tokens: Iterable[int] = ()):
        self.tokens: list[int] = []
        self.match = 0
        self.matched = 0
        self.continues_at = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        self._whole = 0  # the state of the whole text
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._add(token)

    def following(self, state: int) -> list[tuple[int, int]]:
        """The tokens that have followed a state, as (token, next state); the newest place first."""
        ends = self._end
        return sorted(self._next[state].items(), key=lambda item: -ends[item[1]])

    def suffixes(self, state: int, least: int) -> Iterator[int]:
        """A state and those of its suffixes, longest first, of at least `least` tokens."""
        while state > 0 and self._length[state] >= least:
            yield state
            state = self._link[state]

    def continuation(self, count: int) -> list[int]:
        """`count` tokens after `match`, repeated at the end of the text; empty without a match."""
        if not self.matched:
            return []
        start = self.continues_at
        period = len(self.tokens) - start
        return [self.tokens[start + place % period] for place in range(count)]

    def _add(self, token: int) -> None:
        link = self._link
        length = self._length
        nexts = self._next
        end = self._end
        self.tokens.append(token)
        added = self._state(len(self.tokens), {}, 0, len(self.tokens))
        before = self._whole
        self._whole = added
        while before >= 0 and token not in nexts[before]:
            nexts[before][token] = added
            before = link[before]
        if before >= 0:
            known = nexts[before][token]
            if length[before] + 1 < length[known]:  # only its shorter n-grams end here, too
                split = self._state(length[before] + 1, nexts[known].copy(), link[known], 0)
                end[split] = end[known]
                while before >= 0 and nexts[before].get(token) == known:
                    nexts[before][token] = split
                    before = link[before]
                link[known] = known = split
            link[added] = known
        self.match = link[added]
        self.matched = length[self.match]
        self.continues_at = end[self.match]
        state = self.match
        for _ in range(RECENT):
            if state <= 0:
                break
            end[state] = len(self.tokens)
            state = link[state]

    def _state(self, length: int, nexts: dict[int, int], link: int, end: int) -> int:
        self._length.append(length)
        self._next.append(nexts)
        self._link.append(link)
        self._end.append(end)
        return len(self._next) - 1


BLOCK = 16  # rows of a block with the anchor's, if no other drafter sets the number
LEAST = 2  # tokens of a match at least: a single token predicts little


class NgramDrafter(Drafter):
    """Drafts the tokens that followed the same last tokens earlier in the text."""

    kind = "lookup"
    model = None
    config = None
    block_size = BLOCK
    taps: tuple[int, ...] = ()

    def row_bytes(self, item: int) -> int:
        return 0

    def make_cache(self) -> "NgramCache":
        return NgramCache()

    def preview(self, cache: "NgramCache", anchor: int, width: int) -> list[float]:
        """By the length of the match; empty if the last tokens did not occur before."""
        if not cache.look(anchor):
            return []
        return chance(cache.automaton.matched + np.arange(width - 1)).tolist()

    def draft(
        self,
        caches: Sequence["NgramCache"],
        anchors: Sequence[int],
        width: int,
        draws: Sequence[Draw | None] = (),
    ) -> list[DraftBlock]:
        for cache, anchor in zip(caches, anchors, strict=True):
            cache.look(anchor)
        return [CopiedBlock(cache.automaton, width - 1) for cache in caches]


class NgramCache:
    """One sequence's tokens, and the automaton of their n-grams.

    The automaton is updated when drafts are wanted, and rebuilt if it has tokens that were removed
    by a rewind.
    """

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        self._tokens: list[int] = []

    @property
    def offset(self) -> int:
        return len(self._tokens)

    @property
    def state(self) -> list[mx.array]:
        return []

    def look(self, anchor: int) -> bool:
        """Whether the last tokens, the anchor's included, occurred before."""
        known = self.automaton.tokens
        ahead = len(known) - len(self._tokens)  # 1 if the automaton has the last anchor
        if ahead > 1 or (ahead == 1 and known[-1] != anchor):
            self.automaton = SuffixAutomaton([*self._tokens, anchor])
        elif ahead < 1:
            self.automaton.extend([*self._tokens[len(known) :], anchor])
        return self.automaton.matched >= LEAST

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        self.extend((), tokens)

    def rewind(self, length: int) -> None:
        if length < len(self._tokens):
            self.automaton = SuffixAutomaton()
        del self._tokens[length:]

    def fork(self) -> "NgramCache":
        """An independent copy, whose automaton is built when it is needed."""
        twin = NgramCache()
        twin._tokens = list(self._tokens)
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        return ()

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int]) -> None:
        before = len(self._tokens)
        self._tokens += tokens
        ahead = self.automaton.tokens[before:]  # the last anchor
        if ahead and ahead != list(tokens[:1]):
            self.automaton = SuffixAutomaton()


@dataclass(frozen=True, slots=True)
class CopiedBlock:
    """The continuation at an earlier place as γ drafts; a `DraftBlock`, and its `Rankings`.

    These are on the host already; a case is a state of the automaton.
    """

    automaton: SuffixAutomaton
    positions: int

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        return Draft(mx.array(self.automaton.continuation(self.positions), dtype=mx.int32))

    def sample(self, draw: Draw) -> Draft:
        """The same tokens, each with probability 1."""
        tokens = self.greedy().tokens
        return Draft(tokens, mx.ones((tokens.size, 1)), tokens[:, None])

    def top_tokens(self, count: int) -> "CopiedBlock":
        """The tokens that have followed in any of the earlier places."""
        return self

    def begin(self) -> None:
        pass

    def to_host(self) -> "CopiedBlock":
        return self

    def after(self, position: int, case: int) -> Ranked:
        """The tokens that have followed: the newest first, each older one half as likely.

        Position 0 adds tokens that have followed shorter matches.
        """
        automaton = self.automaton
        states = [case]
        if position == 0:
            states = [*automaton.suffixes(automaton.match, LEAST)]
        cases = dict[int, int]()  # by token
        for state in states:
            for token, following in automaton.following(state):
                cases.setdefault(token, following)
        first = float(chance(np.array(automaton.matched + position)))
        older = (log(1 - first) - rank * log(2) for rank in range(1, len(cases)))
        return [log(first), *older][: len(cases)], [*cases], [*cases.values()]


def chance(lengths: np.ndarray) -> np.ndarray:
    """A first guess of how likely a text continues as before, after matches of these lengths."""
    return lengths / (lengths + 2)
