"""The rounds that give the most tokens per second: plain steps or chains of drafts, and how long.

The best next row anywhere gets the next row: drafts of all sequences are put in the order of their
survival, and for every number of rows the first so many are compared by what a pass of so many rows
costs. Over an answer the best round is not the one that is fastest by itself, so each is chosen for
the rate of the last rounds and itself. Drafting has an account of what it lost; one that is
overdrawn is waited for, the longer the more often.

A round's numbers are few: plain lists are faster here than arrays.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dflash_mlx.types import Plan

from .account import Account
from .belief import MEMORY, Belief, Confidence
from .costs import Costs, words
from .drift import Drift
from .policy import Outcome, PolicyState, Text
from .worth import Worth


@dataclass(frozen=True, slots=True)
class Choice:
    """The drafts that each sequence verifies, the tokens expected of a round, and its seconds."""

    drafts: list[int]
    tokens: float
    seconds: float


class Auto:
    """The policy of the mode auto; keep one for a pair, over all its texts."""

    def __init__(self, costs: Costs, block_size: int):
        self._positions, self._reading = block_size - 1, Worth()
        self._long_run, self._copied = Belief(), Belief()  # of the drafter's drafts, of copies
        self._counts: Counter[Plan] = Counter()
        self._rate = 0.0, 0.0  # tokens and seconds of the last rounds, older ones counting less
        self._account, self._size = Account(), 1  # of drafts; sequences of the last round
        self._drafting = 0.0  # seconds of this round's drafts, reading included
        self._more = 0.0  # seconds that its further sequences add to the pass
        self._tries, self._proven = 0, False
        self._last, self._waiting = Choice([0], 1.0, costs.plain), 0
        self.refresh(costs)

    def refresh(self, costs: Costs) -> None:
        """Other costs hold from now on."""
        self._costs, self._drift, self._measured = costs, Drift(), cache(costs.verify)

    def new_belief(self, *, copied: bool = False) -> Belief:
        """As `Policy`. Its drafts do not live on what was gained in other texts.

        It may also be better than they were: where drafts were ever kept no wait goes on.
        """
        if copied:
            return self._copied.fork()
        self._account.debt = 0.0
        if self._proven:
            self._account.wait = 0
        return self._long_run.fork()

    def copies(self, copied: Text, said: Confidence, drafted: Text | None) -> bool:
        """As `Policy`: by the tokens per second of such a round alone."""
        found = self._alone(copied.belief.survivals(said, min(self._positions, copied.room - 1)))
        other = 1 / self._pass(1)
        if drafted is not None and self._account.wait <= 0:
            made = drafted.belief.by_position(min(self._positions, drafted.room - 1))
            other = max(other, self._alone(made, self._costs.draft))
        return found > other

    def _alone(self, survivals: list[float], drafting: float = 0.0) -> float:
        """Tokens per second of a round of one sequence at its best width."""
        best, tokens = 0.0, 1.0
        for count, survival in enumerate(survivals, 1):
            tokens += survival
            best = max(best, tokens / (drafting + self._pass(1 + count)))
        return best

    def drafts(self, texts: Sequence[Text], rows: int = 0) -> list[bool]:
        """As `Policy`: all sequences, or none while drafts wait."""
        size = len(texts) + rows
        if size < self._size:  # rows are cheaper than they were
            self._account.wait = 0
        self._drafting, self._size = 0.0, size
        self._more = self._costs.sequence * max(0, size - 1)
        return [text.room > 1 and self._account.wait <= 0 for text in texts]

    def rests(self, texts: Sequence[Text]) -> bool:
        """As `Policy`."""
        return self._account.wait > 1 or all(text.room < 2 for text in texts)

    def reads(self, count: int) -> bool:
        """As `Policy`: where that has paid for the wait."""
        return self._reading.due(self._costs.read * self._speed)

    @property
    def _speed(self) -> float:
        """Tokens per second of late."""
        tokens, seconds = self._rate
        return tokens / seconds if seconds else 1 / self._costs.plain

    def choose(
        self, texts: Sequence[Text], confidences: Sequence[Confidence | None], rows: int = 0
    ) -> list[Plan]:
        """As `Policy`."""
        own = [said for text, said in zip(texts, confidences, strict=True) if not text.copied]
        self._drafting, read = 0.0, any(said is not None for said in own)
        if own:
            costs = self._costs
            self._drafting = costs.draft + costs.block * (len(own) - 1) + costs.read * read
        # Until a draft is kept, one a block is enough to see that.
        most = self._positions if self._proven else 1
        bounds = [min(self._positions if t.copied else most, t.room - 1) for t in texts]
        survivals = []
        for text, said, positions in zip(texts, confidences, bounds, strict=True):
            text.belief.confidence = said
            survivals.append(text.belief.survivals(said, positions))
        least = int(not self._proven or self._account.trying)
        leasts = [0 if text.copied else least for text in texts]
        choice = self._allot(survivals, leasts, rows)
        if read and self._proven and len(own) == len(texts):
            blind = [t.belief.by_position(n) for t, n in zip(texts, bounds, strict=True)]
            other = self._allot(blind, leasts, rows)
            self._reading.learn(self._gain(choice, survivals, other, rows))
        self._last = choice
        return [Plan(count + 1) for count in choice.drafts]

    def _allot(self, survivals: list[list[float]], leasts: list[int], rows: int) -> Choice:
        """How many drafts of each sequence to verify beside so many rows, for the best rate.

        At least so many of each: where it is to be found out whether drafts are kept.
        """
        ranked = sorted(
            (place >= leasts[which], -survival, which)
            for which, chain in enumerate(survivals)
            for place, survival in enumerate(chain)
        )
        first = sum(min(n, len(chain)) for n, chain in zip(leasts, survivals, strict=True))
        (before, took), best, fastest = self._rate, (0, 1.0, 1.0), 0.0
        tokens = base = float(len(survivals) + rows)
        for count in range(len(ranked) + 1):
            tokens -= ranked[count - 1][1] if count else 0.0
            seconds = self._drafting + self._pass(int(base) + count)
            rate = (before + tokens) / (took + seconds)
            if count >= first and rate > fastest:
                best, fastest = (count, tokens, seconds), rate
        count, tokens, seconds = best
        drafts = Counter(which for *_, which in ranked[:count])
        return Choice([drafts[which] for which in range(len(survivals))], tokens, seconds)

    def _gain(
        self, choice: Choice, survivals: list[list[float]], blind: Choice, rows: int
    ) -> float:
        """Tokens that the choice is better than the one without confidence."""
        counts = [min(n, len(c)) for n, c in zip(blind.drafts, survivals, strict=True)]
        base = len(survivals) + rows
        tokens = base + sum(sum(c[:n]) for c, n in zip(survivals, counts, strict=True))
        seconds = self._drafting + self._pass(base + sum(counts))
        gain = choice.tokens - tokens - self._speed * (choice.seconds - seconds)
        return max(0.0, gain)

    def _pass(self, rows: int) -> float:
        """Seconds of this round's pass with so many rows, as the clock has it."""
        measured = self._measured(rows)
        return measured * self._drift.factor(measured) + self._more

    def learn(self, rounds: Sequence[Outcome], seconds: float | None) -> None:
        """As `Policy`: acceptance, costs, and what drafting has gained."""
        account, size = self._account, len(rounds)
        verified, own = sum(d.verified for d in rounds), sum(d.own for d in rounds)
        plain, undrafted = self._pass(size), self._pass(size + verified - own)
        spent = expected = self._drafting + self._pass(size + verified)
        if seconds is not None and seconds > 0:
            spent = self._drift.learn(self._measured(size + verified), expected, seconds)
        tokens, took = self._rate
        tokens += sum(done.committed for done in rounds)
        self._rate = MEMORY * tokens, MEMORY * (took + expected)
        self._counts.update(done.plan for done in rounds)
        self._waiting = max(0, account.wait)
        tried = account.failed > 0 or not self._proven
        gained = sum(self._learn_text(done) for done in rounds)
        if not any(done.drafted for done in rounds):
            account.wait -= 1
            return
        self._tries += account.trying
        all_kept = 0 < own == sum(done.kept for done in rounds)
        lost = spent / plain - undrafted / plain - gained / size
        account.learn(lost, passed=tried and all_kept, stop=self._costs.read / plain)
        if account.wait > 0:
            for done in rounds:
                done.belief.doubt()

    def _learn_text(self, done: Outcome) -> float:
        """Learn acceptance; the drafts that may be expected to be kept in such a round."""
        belief, said = done.belief, done.belief.confidence
        if not done.own:
            return 0.0
        cut = done.committed <= done.accepted
        for one in (belief, self._long_run if done.drafted else self._copied):
            one.learn(said, done.own, done.kept, cut=cut)
        self._proven = self._proven or (done.drafted and done.kept > 0)
        return sum(belief.survivals(said, done.own))  # what was kept is luck

    @property
    def state(self) -> PolicyState:
        """What was chosen so far, and why."""
        last = self._last
        reason = (
            f"plain steps: drafts have lost time here, next try in {self._waiting}"
            if self._waiting
            else f"{words(Plan(last.drafts[0] + 1))}: {last.tokens:.1f} tokens expected in "
            f"{1000 * last.seconds:.1f} ms, {last.tokens / last.seconds:.0f} tok/s against "
            f"{1 / self._costs.plain:.0f} by plain steps"
        )
        return PolicyState(
            "auto",
            reason,
            plans=tuple(self._counts.most_common()),
            acceptance=self._long_run.acceptance,
            drafting=not self._waiting,
            tries=self._tries,
        )
