"""Prompt lookup: drafts copied from an earlier place where the text said what it says now.

Summaries quote, edits repeat code, tables repeat rows; no model is needed to guess that the text
goes on as it did. The idea is Saxena's "prompt lookup decoding" (2023), here over prompt,
conversation and answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log

import mlx.core as mx
import numpy as np

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.speculation.drafts import Draft, DraftBlock
from dflash_mlx.speculation.sampling import Shaper
from dflash_mlx.speculation.tree import Ranked

# Every run of tokens that occurs in a text, and how each goes on

RECENT = 16  # suffixes of the text whose newest place is noted with each token


class SuffixAutomaton:
    """The runs of `tokens`; a state stands for runs that end at the same places.

    State 0 is the empty run. `match` is the state of the longest suffix of the text that also
    occurs before its end, `matched` its length (0: there is none), and `goes_on_at` the number of
    the token that followed it there, in the newest place that is known.
    """

    def __init__(self, tokens: Iterable[int] = ()):
        self.tokens: list[int] = []
        self.match = self.matched = self.goes_on_at = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        self._whole = 0  # the state of the whole text
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens to the text's end."""
        for token in tokens:
            self._add(token)

    def following(self, state: int) -> list[tuple[int, int]]:
        """What has followed a state's runs, as (token, state); the newest place first."""
        ends = self._end
        return sorted(self._next[state].items(), key=lambda item: -ends[item[1]])

    def suffixes(self, state: int, least: int) -> Iterator[int]:
        """A state and those of its runs' ends that occur elsewhere, too, longest first.

        Only those of runs of at least so many tokens.
        """
        while state > 0 and self._length[state] >= least:
            yield state
            state = self._link[state]

    def continuation(self, count: int) -> list[int]:
        """The next `count` tokens if the text goes on as it did after `match`; round and round.

        Nothing where there is no match.
        """
        if not self.matched:
            return []
        start = self.goes_on_at
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
            if length[before] + 1 < length[known]:  # only its shorter runs end here, too
                split = self._state(length[before] + 1, nexts[known].copy(), link[known], 0)
                end[split] = end[known]
                while before >= 0 and nexts[before].get(token) == known:
                    nexts[before][token] = split
                    before = link[before]
                link[known] = known = split
            link[added] = known
        self.match = link[added]
        self.matched = length[self.match]
        self.goes_on_at = end[self.match]
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


BLOCK = 16  # rows of a block of copies where no drafter says how many, the anchor's included
LEAST = 2  # tokens that must have occurred before; one alone says nearly nothing


class NgramDrafter(Drafter):
    """Drafts what followed the same last tokens before."""

    model = None
    config = None
    block_size = BLOCK
    taps: tuple[int, ...] = ()

    def row_bytes(self, item: int) -> int:
        return 0

    def make_cache(self) -> "NgramCache":
        return NgramCache()

    def preview(self, cache: "NgramCache", anchor: int, width: int) -> list[float]:
        """Empty if the last tokens did not occur before."""
        if not cache.look(anchor):
            return []
        return CopiedBlock(cache.runs, width - 1).confidence()().tolist()

    def draft(
        self, caches: Sequence["NgramCache"], anchors: Sequence[int], width: int
    ) -> list[DraftBlock]:
        for cache, anchor in zip(caches, anchors, strict=True):
            cache.look(anchor)
        return [CopiedBlock(cache.runs, width - 1) for cache in caches]


class NgramCache:
    """One sequence's tokens, and the runs that occur in them.

    The runs are brought up to date when drafts are asked for, and found anew where tokens were
    taken back.
    """

    def __init__(self) -> None:
        self.runs = SuffixAutomaton()
        self._tokens: list[int] = []

    @property
    def offset(self) -> int:
        """Tokens that were committed."""
        return len(self._tokens)

    @property
    def state(self) -> list[mx.array]:
        """There are no arrays."""
        return []

    def look(self, anchor: int) -> bool:
        """Whether the last tokens, the anchor's included, occurred before."""
        known = self.runs.tokens
        text = [*self._tokens[len(known) :], anchor]
        ahead = len(known) - len(self._tokens)  # 1 where the runs have an anchor that was not kept
        if ahead > 1 or (ahead == 1 and known[-1] != anchor):
            self.runs = SuffixAutomaton([*self._tokens, anchor])
        elif ahead < 1:
            self.runs.extend(text)
        return self.runs.matched >= LEAST

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit tokens."""
        self.extend((), tokens)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        if length < len(self._tokens):
            self.runs = SuffixAutomaton()
        del self._tokens[length:]

    def fork(self) -> "NgramCache":
        """A copy that goes on by itself; its runs are found when they are wanted."""
        twin = NgramCache()
        twin._tokens = list(self._tokens)
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """There are no rows."""
        return ()

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int] = ()) -> None:
        """Commit tokens."""
        before = len(self._tokens)
        self._tokens += tokens
        if len(self.runs.tokens) > before and self.runs.tokens[before:] != list(tokens[:1]):
            self.runs = SuffixAutomaton()

    def fill(self, depth: int) -> None:
        """Look as if `depth` tokens had been committed."""
        self._tokens += [0] * (depth - len(self._tokens))


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
        runs = self.runs
        found = dict[int, int]()
        for state in runs.suffixes(runs.match, LEAST) if position == 0 else (case,):
            for token, then in runs.following(state):
                found.setdefault(token, then)
        first = float(chance(np.array(runs.matched + position)))
        older = (log(1 - first) - rank * log(2) for rank in range(1, len(found)))
        return [log(first), *older][: len(found)], [*found], [*found.values()]


def chance(lengths: np.ndarray) -> np.ndarray:
    """The first guess of how likely a text goes on as it did after so many equal tokens."""
    return lengths / (lengths + 2)
