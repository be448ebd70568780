"""The round that gives the most tokens per second: a plain step, a chain or a tree, and how wide.

Measured costs say what each takes, calibrations how many drafts of this very block will be kept.
Over an answer the best round is not the one that is fastest by itself: one more row pays when it
brings tokens at a better rate than the answer has. So each round is chosen for the rate of the last
rounds and itself. Where drafting loses it is parked and tried again rarely. Knows no models.
"""

from collections import Counter
from dataclasses import dataclass
from math import ceil

import numpy as np

from .calibration import Calibration, Confidence, Positions, survivals
from .costs import PLAIN, Costs, Drift, Look, Plan, words
from .policy import PolicyState

MEMORY = 0.9  # of the rate, a round
WINDOW = 6  # drafted rounds by which drafting is judged
PROOF, DEAR = 2, 2.0  # drafts to see kept before a round may lose more than that many plain steps
PATIENCE = 25.0, 200.0  # plain steps between tries for each that a try loses: at first, at most
SETTLED = 8  # drafted rounds after which parking begins with the shortest wait again
RISK = 0.01  # share of all time that tries may have lost when a conversation begins with one
RARELY = 8, 64  # rounds between looks that have not paid: at first, at most


@dataclass(slots=True)
class Interest:
    """Whether something that costs a little is worth doing, done more rarely while it is not."""

    worth: float = 0.0
    times: int = 0
    wait: int = 0
    pause: int = RARELY[0]

    def due(self) -> bool:
        """Whether to do it this time."""
        self.wait -= 1
        return self.wait < 0

    def learn(self, worth: float) -> None:
        """It was done and gained `worth`, what it costs taken off."""
        self.times += 1
        self.worth += (worth - self.worth) / min(self.times, 6)
        if self.worth >= 0 or self.times < 6:
            self.pause = RARELY[0]
        else:
            self.wait, self.pause = self.pause, min(2 * self.pause, RARELY[1])


@dataclass(frozen=True, slots=True)
class Seen:
    """One draft by every calibration: how likely its chain [γ, C] and its trees [T, depth, C] are
    kept so far, and how many tokens each plan would commit [plans, C].
    """

    chain: np.ndarray
    trees: np.ndarray
    tokens: np.ndarray


class Auto:
    """The policy of the mode auto; keep one for a pair, over all its conversations."""

    def __init__(self, costs: Costs, block_size: int):
        chains = [Plan(rows) for rows in range(2, block_size + 1)]
        trees = [Plan(rows, tree=True) for rows, _ in costs.tree if rows > 1]
        self._plans = [PLAIN, *chains, *trees]
        self._rows = np.array([plan.rows for plan in self._plans])
        self._places = {plan: place for place, plan in enumerate(self._plans)}
        self._ends = 1 + len(chains), len(self._plans)  # of the chains, of the trees
        self._chain, self._tree, self._positions = Calibration(), Calibration(), Positions()
        self._drift = Drift(self._plans)
        self._looks, self._grows = Interest(), Interest()
        self._counts: Counter[Plan] = Counter()
        self._window: list[Seen] = []
        self._rate = 0.0, 0.0  # tokens and seconds of the last rounds, older ones counting less
        self._wait = self._fails = self._streak = self._kept = self._tries = 0
        self._parked = self._drafted = False
        self._elapsed = self._lost = self._gain = 0.0
        self._look: Look = "nothing"
        self._seen: Seen | None = None
        self._last = PLAIN, 1.0, costs.plain
        self.refresh(costs)

    def refresh(self, costs: Costs) -> None:
        """Costs were measured anew; of trees only the widths known at first are used."""
        self._costs = costs
        self._measured = np.array([costs.seconds(plan) for plan in self._plans])
        self._price()

    def _price(self) -> None:
        self._seconds = self._measured * self._drift.factors
        self._plain = float(self._seconds[0])

    def begin(self) -> None:
        """A new conversation: drafting is tried again if that has cost little so far."""
        self._chain.begin()
        self._tree.begin()
        self._positions.begin()
        if self._parked and self._lost <= RISK * self._elapsed:
            self._wait = self._fails = 0

    def drafts(self, room: int) -> bool:
        """Whether to draft: not while parked, and not for one token."""
        self._drafted = room > 1 and self._wait <= 0
        self._look, self._seen = "nothing", None
        if not self._drafted:
            self._take(0, 1.0, self._plain)
        return self._drafted

    def look(self) -> Look:
        """Read the confidence where that has paid for the wait, and trees where they have won."""
        if self._ends[0] < self._ends[1] and self._grows.due():
            self._look = "tree"
        elif self._parked or self._looks.due():
            self._look = "chain"
        return self._look

    def plan(self, confidence: Confidence | None, room: int) -> Plan:
        """The best round after drafting."""
        if confidence is None:
            tokens = self._usual()
        else:
            self._seen = self._see(confidence)
            tokens = self._expect(self._seen.tokens)
        tokens = np.minimum(tokens, room)
        seconds = self._seconds + self._costs.looking(self._look)
        seconds[0] += self._costs.draft
        open_ = (self._rows <= room) | (np.arange(len(self._rows)) >= self._ends[0])
        open_ &= tokens > 0
        open_[0] = not self._parked  # a try must show something
        if self._kept < PROOF:
            least = np.where(open_, seconds, np.inf)[1:].min()
            open_ &= seconds <= max(least, (1 + DEAR) * self._plain)
        best = self._fastest(tokens, seconds, open_)
        if confidence is not None and not self._parked:
            self._value_looks(tokens, seconds, open_, best)
        self._take(best, float(tokens[best]), float(seconds[best]))
        return self._plans[best]

    def _see(self, confidence: Confidence) -> Seen:
        first, last = self._ends
        chain = survivals(np.array(confidence.chain[: first - 1]))
        tokens = np.zeros((last, chain.shape[1]))
        tokens[0] = 1.0
        tokens[1 : 1 + len(chain)] = 1 + np.cumsum(chain, axis=0)
        trees = np.zeros((0, 0, chain.shape[1]))
        if confidence.depths:
            budgets = tuple(plan.rows - 1 for plan in self._plans[first:])
            trees = survivals(confidence.steps(budgets))
            tokens[first:] = 1 + trees.sum(axis=1)
        return Seen(chain, trees, tokens)

    def _expect(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens by every calibration [..., plans, C] -> by what is believed [..., plans]."""
        end = self._ends[0]
        chains, trees = tokens[..., :end, :], tokens[..., end:, :]
        return np.concatenate([chains @ self._chain.weights, trees @ self._tree.weights], axis=-1)

    def _usual(self) -> np.ndarray:
        """The tokens that plans commit on average; trees are not counted."""
        tokens = np.zeros(len(self._plans))
        rates = self._positions.rates(self._ends[0] - 1)
        tokens[: self._ends[0]] = 1 + np.concatenate([[0], np.cumsum(np.cumprod(rates))])
        return tokens

    def _fastest(self, tokens: np.ndarray, seconds: np.ndarray, open_: np.ndarray) -> int:
        before, took = self._rate
        return int(np.argmax(np.where(open_, (before + tokens) / (took + seconds), -1.0)))

    def _take(self, place: int, tokens: float, seconds: float) -> None:
        before, took = self._rate
        self._rate = MEMORY * (before + tokens), MEMORY * (took + seconds)
        self._last = self._plans[place], tokens, seconds

    def _value_looks(
        self, tokens: np.ndarray, seconds: np.ndarray, open_: np.ndarray, best: int
    ) -> None:
        """What the looks gained in this round, in tokens at the present rate."""
        before, took = self._rate
        rate = (before + tokens[best]) / (took + seconds[best])
        values = tokens - rate * seconds
        chains = open_.copy()
        chains[self._ends[0] :] = False
        if self._look == "tree":
            gain = values[best] - np.where(chains, values, -np.inf).max()
            self._grows.learn(float(gain - rate * self._costs.grow))
        usual = self._fastest(self._usual(), seconds, chains)
        self._looks.learn(float(values[best] - values[usual] - rate * self._costs.look))

    def learn(
        self, plan: Plan, accepted: int, committed: int, seconds: float | None = None
    ) -> None:
        """Learn acceptance and costs from a round, and park drafting where it loses."""
        self._counts[plan] += 1
        place = self._places[plan]
        expected = float(self._seconds[place]) + self._costs.looking(self._look)
        if self._drafted and plan.rows == 1:
            expected += self._costs.draft
        self._elapsed += expected
        if seconds is not None and seconds > 0:
            self._drift.learn(plan, expected, seconds)
            self._price()
        if not self._drafted:
            self._wait -= 1
            return
        if plan.rows > 1:
            self._learn_drafts(place, accepted, cut=committed <= accepted)
        self._park(expected - committed * self._plain)

    def _learn_drafts(self, place: int, accepted: int, *, cut: bool) -> None:
        self._kept += accepted
        own, other, tree = self._chain, self._tree, place - self._ends[0]
        offered, survival = int(self._rows[place]) - 1, None
        if self._seen is not None:
            survival = self._seen.chain
        if tree >= 0:
            assert self._seen is not None
            own, other, survival = other, own, self._seen.trees[tree]
            offered = int((survival[:, 0] > 0).sum())
        else:
            self._positions.learn(accepted, offered, cut=cut)
        if survival is not None:
            own.learn(survival, accepted, offered, cut=cut)
            other.learn(survival, accepted, offered, cut=cut, share=0.5)

    def _park(self, loss: float) -> None:
        """After a drafted round that took `loss` seconds more than its tokens by plain steps."""
        if self._seen is not None:
            self._window = [*self._window[1 - WINDOW :], self._seen]
        self._gain = self._saving()
        self._streak = self._streak + 1 if self._gain >= 0 else 0
        if self._parked or self._gain < 0:
            self._tries += 1
            self._lost = max(0.0, self._lost + loss)
        if self._gain >= 0:
            self._parked = False
            if self._streak >= SETTLED:
                self._fails = 0
            return
        first, most = PATIENCE
        steps = max(0.1, -self._gain / self._plain)
        self._wait = ceil(steps * min(first * 2**self._fails, most))
        self._parked, self._fails = True, self._fails + 1
        del self._window[:-1]

    def _saving(self) -> float:
        """Seconds that a drafted round saves against plain steps, by what is believed now."""
        if self._seen is None:
            tokens = self._usual()
        else:
            tokens = self._expect(np.stack([seen.tokens for seen in self._window]))
        saved = np.where(tokens > 0, tokens * self._plain - self._seconds, -np.inf)
        saved[..., 0] = -self._costs.draft
        return float(saved.max(axis=-1).mean()) - self._costs.looking(self._look)

    @property
    def state(self) -> PolicyState:
        """What was chosen so far, and why."""
        plan, tokens, seconds = self._last
        reason = (
            f"{words(plan)}: {tokens:.1f} tokens expected in {1000 * seconds:.1f} ms, "
            f"{tokens / seconds:.0f} tok/s against {1 / self._plain:.0f} by plain steps"
        )
        if self._parked:
            reason = (
                f"parked: a drafted round would lose {-self._gain / self._plain:.1f} plain steps, "
                f"next try in {max(0, self._wait)}"
            )
        return PolicyState(
            "auto",
            reason,
            parked=self._parked,
            plans=tuple(self._counts.most_common()),
            seconds=tuple((p, float(self._seconds[self._places[p]])) for p in self._counts),
            acceptance=self._positions.shares,
            gain=self._gain / self._plain,
            tries=self._tries,
        )
