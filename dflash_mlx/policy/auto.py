"""The round that gives the most tokens per second: a plain step, a chain or a tree, and how wide.

Measured costs say what each takes, calibrations how many drafts of this very block will be kept.
Over an answer the best round is not the one that is fastest by itself: one more row pays when it
brings tokens at a better rate than the answer has. So each round is chosen for the rate of the last
rounds and itself. Knows no models, no clock, and no caches.

What is done every round is done with plain numbers: while a model runs, an array operation on
twenty of them takes as long as some hundred of Python's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from operator import mul

import numpy as np

from .calibration import Calibration, Confidence, Paths, Positions, steps, survivals
from .costs import Costs, Drift, Plan, words
from .parking import Interest, Parking
from .policy import PolicyState

MEMORY = 0.9  # of the rate, a round
WINDOW = 10  # drafts by which drafting is judged
MARGIN = 0.02  # by which costs may be wrong: what was drafted is verified unless less is better
REST = 4  # rounds for which a choice without a look stands, and what is thought of drafting
PROOF, DEAR = 2, 2.0  # drafts to see kept before a round may lose more than that many plain steps


@dataclass(frozen=True, slots=True)
class Seen:
    """One draft by every calibration: how likely its chain [γ, C] and its trees [T, depth, C] are
    kept so far, and how many tokens each plan would commit [plans, C].
    """

    chain: np.ndarray
    trees: np.ndarray | None
    tokens: np.ndarray


@dataclass(frozen=True, slots=True)
class Choice:
    """The place of a plan, the tokens it is expected to commit, and its seconds."""

    place: int
    tokens: float
    seconds: float


class Auto:
    """The policy of the mode auto; keep one for a pair, over all its conversations."""

    def __init__(self, costs: Costs, block_size: int):
        chains = [Plan(rows) for rows in range(1, block_size + 1)]
        self._trees = [Plan(rows, tree=True) for rows, _ in costs.tree if rows > 1]
        self._plans = [*chains, *self._trees]
        self._margin = [1.0 + MARGIN * (plan != chains[-1]) for plan in self._plans]
        self._places = {plan: place for place, plan in enumerate(self._plans)}
        self._slots = block_size - 1
        self._chain, self._tree, self._positions = Calibration(), Calibration(), Positions()
        self._drift = Drift(self._plans)
        self._parking, self._looking, self._growing = Parking(), Interest(), Interest()
        self._counts: Counter[Plan] = Counter()
        self._window: list[Seen] = []
        self._rate = 0.0, 0.0  # tokens and seconds of the last rounds, older ones counting less
        self._kept = 0
        self._seen: Seen | None = None
        self._gain = self._wasted = 0.0
        self._drafted = False
        self._habit: Choice | None = None
        self._age, self._saves = 0, 0.0
        self.refresh(costs)
        self._last = Choice(0, 1.0, self._plain)

    def refresh(self, costs: Costs) -> None:
        """Costs were measured anew; of trees only the widths known at first are used."""
        self._costs = costs
        self._measured = [costs.seconds(plan) for plan in self._plans]
        self._price()

    def _price(self) -> None:
        self._seconds = list(map(mul, self._measured, self._drift.factors))
        self._plain = self._seconds[0]

    @property
    def _speed(self) -> float:
        tokens, seconds = self._rate
        return tokens / seconds if seconds else 1 / self._plain

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree."""
        return max((plan.rows - 1 for plan in self._trees), default=0)

    def begin(self) -> None:
        """A new conversation."""
        self._chain.begin()
        self._tree.begin()
        self._positions.begin()
        self._parking.begin()
        self._rate = 0.0, 0.0

    def drafts(self, room: int) -> bool:
        """Whether to draft: not while parked, and not for one token."""
        self._drafted = room > 1 and self._parking.wait <= 0
        self._seen, self._wasted = None, self._costs.draft if self._drafted else 0.0
        if not self._drafted:
            self._take(Choice(0, 1.0, self._plain))
        elif self._parking.parked:  # things may have changed since the last try
            self._price()
            self._chain.begin()
            self._tree.begin()
        return self._drafted

    @property
    def rests(self) -> bool:
        """While it waits for the next try."""
        return self._parking.wait > 1

    def looks(self) -> bool:
        """Whether to read the confidence: where that has paid for the wait, and in a try."""
        return self._parking.parked or self._looking.due(1.0, self._costs.look * self._speed)

    def plan(self, confidence: Confidence | None, room: int) -> Plan:
        """The best round after drafting."""
        if confidence is None:
            return self._take(self._blindly(room))
        self._wasted += self._costs.look
        self._seen = self._see(confidence)
        tokens = self._expect(self._seen.tokens).tolist()
        choice = self._choose(tokens, room)
        if not self._parking.parked:
            blind = self._blindly(room).place
            self._looking.learn(self._better(choice, blind, tokens), 1.0)
        hope = min(room, self._slots + 1) - choice.tokens
        price = self._costs.grow * self._speed
        if self._trees and confidence.grow is not None and self._growing.due(hope, price):
            self._wasted += self._costs.grow
            self._seen = self._with_trees(self._seen, confidence.grow())
            tokens = self._expect(self._seen.tokens).tolist()
            chain, choice = choice.place, self._choose(tokens, room)
            self._growing.learn(self._better(choice, chain, tokens), hope)
        return self._take(choice)

    def _see(self, confidence: Confidence) -> Seen:
        chain = survivals(np.array(confidence.chain[: self._slots]))
        tokens = np.zeros((len(self._plans), chain.shape[1]))
        tokens[0] = 1.0
        tokens[1 : 1 + len(chain)] = 1 + np.cumsum(chain, axis=0)
        return Seen(chain, None, tokens)

    def _with_trees(self, seen: Seen, paths: Paths) -> Seen:
        trees = survivals(steps(paths, [plan.rows - 1 for plan in self._trees]))
        tokens = seen.tokens.copy()
        tokens[-len(trees) :] = 1 + trees.sum(axis=1)
        return Seen(seen.chain, trees, tokens)

    def _expect(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens by every calibration [..., plans, C] -> by what is believed [..., plans]."""
        ends = self._slots + 1
        chains, trees = tokens[..., :ends, :], tokens[..., ends:, :]
        return np.concatenate([chains @ self._chain.weights, trees @ self._tree.weights], axis=-1)

    def _usual(self) -> list[float]:
        """The tokens that plans commit on average; 0 for trees, of which nothing is said."""
        chances = accumulate(self._positions.rates(self._slots), mul)
        return [*accumulate(chances, initial=1.0), *[0.0] * len(self._trees)]

    def _blindly(self, room: int) -> Choice:
        """The best round by what is usual, found anew every few rounds."""
        if room <= self._slots:
            return self._choose(self._usual(), room)
        if self._habit is None or self._age >= REST:
            self._habit, self._age = self._choose(self._usual(), room), 0
        return self._habit

    def _choose(self, tokens: Sequence[float], room: int) -> Choice:
        """The plan with the best rate together with the last rounds; 0 `tokens`: not to be had."""
        wasted = self._wasted - self._costs.draft
        choices = [
            Choice(place, min(count, room), self._seconds[place] + wasted)
            for place, count in enumerate(tokens)
            # Chains have no more rows than there is room for, and a try must show something.
            if count > 0 and not room <= place <= self._slots and place
        ]
        if self._kept < PROOF:
            most = max((1 + DEAR) * self._plain, min(choice.seconds for choice in choices))
            choices = [choice for choice in choices if choice.seconds <= most]
        if not self._parking.parked:
            choices.insert(0, Choice(0, 1.0, self._plain + self._wasted))
        before, took = self._rate

        def rate(choice: Choice) -> float:
            margin = self._margin[choice.place]
            return (before + choice.tokens) / (took + choice.seconds * margin)

        return max(choices, key=rate)

    def _better(self, choice: Choice, other: int, tokens: Sequence[float]) -> float:
        """Tokens that a choice brings over another place, at the rate that it leads to."""
        before, took = self._rate
        speed = (before + choice.tokens) / (took + choice.seconds)
        slower = self._seconds[other] - self._seconds[choice.place]
        return max(0.0, choice.tokens - (tokens[other] - speed * slower))

    def _take(self, choice: Choice) -> Plan:
        before, took = self._rate
        self._rate = MEMORY * (before + choice.tokens), MEMORY * (took + choice.seconds)
        self._last = choice
        return self._plans[choice.place]

    def learn(
        self, plan: Plan, accepted: int, committed: int, seconds: float | None = None
    ) -> None:
        """Learn acceptance and costs from a round, and whether drafting pays."""
        self._counts[plan] += 1
        place = self._places[plan]
        expected = self._measured[place] * self._drift.factor(plan)
        if self._drafted:
            expected += self._wasted - self._costs.draft * (plan.rows > 1)
        self._parking.spend(expected)
        spent = expected
        if seconds is not None and seconds > 0:
            self._drift.learn(plan, expected, seconds)
            spent = self._drift.usual(expected, seconds)
        if not self._drafted:
            self._parking.wait -= 1
            return
        if plan.rows > 1:
            self._learn_drafts(place, accepted, cut=committed <= accepted)
        self._age += 1
        if self._seen is not None or self._age >= REST or self._habit is None:
            self._gain, self._saves = self._saved()
            self._price()
        self._parking.learn(
            self._gain,
            self._saves,
            committed * self._plain - spent,
            self._plain,
            late=spent - expected,
            proven=self._kept >= PROOF,
            whole=plan.rows > 1 and accepted == plan.rows - 1,
        )
        if self._parking.parked:
            del self._window[:-1]

    def _learn_drafts(self, place: int, accepted: int, *, cut: bool) -> None:
        self._kept += accepted
        own, other, tree = self._chain, self._tree, place - self._slots - 1
        if tree >= 0:
            assert self._seen is not None
            assert self._seen.trees is not None
            own, other, survival = other, own, self._seen.trees[tree]
            offered = int((survival[:, 0] > 0).sum())
        else:
            self._positions.learn(accepted, place, cut=cut)
            if self._seen is None:
                return
            survival, offered = self._seen.chain, place
        own.learn(survival, accepted, offered, cut=cut)
        other.learn(survival, accepted, offered, cut=cut, share=0.5)

    def _saved(self) -> tuple[float, float]:
        """Seconds that the last drafts save against plain steps, by what is believed now.

        On average, and those of the very last.
        """
        drafts = [self._usual()]
        if self._seen is not None:
            self._window = [*self._window[1 - WINDOW :], self._seen]
            drafts = self._expect(np.stack([seen.tokens for seen in self._window])).tolist()
        saved = [self._best_saving(tokens) for tokens in drafts]
        looks = self._wasted - self._costs.draft
        return sum(saved) / len(saved) - looks, saved[-1] - looks

    def _best_saving(self, tokens: Sequence[float]) -> float:
        """Of all plans after a draft; 0 `tokens`: not to be had."""
        pairs = zip(tokens[1:], self._seconds[1:], strict=True)
        saved = (count * self._plain - seconds if count > 0 else -inf for count, seconds in pairs)
        return max(-self._costs.draft, *saved)

    @property
    def state(self) -> PolicyState:
        """What was chosen so far, and why."""
        last, parking = self._last, self._parking
        reason = (
            f"{words(self._plans[last.place])}: {last.tokens:.1f} tokens expected in "
            f"{1000 * last.seconds:.1f} ms, {last.tokens / last.seconds:.0f} tok/s against "
            f"{1 / self._plain:.0f} by plain steps"
        )
        if parking.parked:
            reason = (
                f"parked: a drafted round would lose {-parking.foreseen / self._plain:.1f} "
                f"plain steps, next try in {max(0, parking.wait)}"
            )
        return PolicyState(
            "auto",
            reason,
            parked=parking.parked,
            plans=tuple(self._counts.most_common()),
            seconds=tuple((p, self._seconds[self._places[p]]) for p in self._counts),
            acceptance=self._positions.shares,
            gain=parking.foreseen / self._plain,
            tries=parking.tries,
        )
