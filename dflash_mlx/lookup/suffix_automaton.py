"""Every run of tokens that occurs in a text, and how each goes on: a suffix automaton.

It grows by one token at a time, in time linear in the text (Blumer et al., "The smallest automaton
recognizing the subwords of a text", 1985). Plain numbers; does not know what the tokens mean.
"""

from collections.abc import Iterable, Iterator

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
        self._link, self._length, self._end = [-1], [0], [0]
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
        link, length, nexts, end = self._link, self._length, self._next, self._end
        self.tokens.append(token)
        added = self._state(len(self.tokens), {}, 0, len(self.tokens))
        before, self._whole = self._whole, added
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
        self.matched, self.goes_on_at = length[self.match], end[self.match]
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
