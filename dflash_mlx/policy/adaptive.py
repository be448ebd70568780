"""The policy of the mode auto: it chooses the plan with the most tokens per second.

A plan is how many rows are drafted, and how many of them are verified. `Costs` knows what a round
takes. Its expected tokens are one per sequence, plus the survival of each verified draft: the
probability that the draft is accepted with all before it. For a width, the policy ranks the drafts
of all sequences by survival and verifies the first n, for the n with the best rate. If drafting
loses time against decode steps, a back-off pauses it. Nothing is measured but rounds of answers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import ceil, log
from typing import NamedTuple

from dflash_mlx.types import Plan

from .acceptance import Acceptance
from .costs import LATE, Batch, Costs, Part, edges, knot
from .policy import Choice, DraftState, PolicyState, StepResult
from .prior import KNOTS

LOSS = 0.5  # decode steps that drafting may lose before it pauses: a tenth of a second at most
CREDIT = 1.5  # decode steps of gain that can pay for later losses: enough for a bad passage
PAUSE = 15  # rounds of a pause per decode step lost, so that tries cost a fifteenth at most
DOUBLINGS = 4  # of the pause after failed tries: up to 240 rounds per decode step lost
STEPS = 3  # decode steps in a row, of which the second takes the time of one pass
ANCHORS = 4, 64  # drafted rounds until decode steps are timed again: at first, and at most
CHANGED = log(1.1)  # decode steps that changed by more are timed again soon
DOUBT = 1.5  # a decode step may be faster than known by this factor


@dataclass(slots=True)
class BackOff:
    """Decides when to pause something that loses time. Each failure in a row doubles the pause.

    `lost`: decode steps lost, less those gained. `pause`: rounds until the next try. `failures`:
    pauses since the gain last reached CREDIT.
    """

    lost: float = 0.0
    pause: int = 0
    failures: int = 0

    @property
    def trying(self) -> bool:
        """Whether this is the first round after a pause."""
        return self.failures > 0 and self.lost == 0.0

    def update(self, lost: float) -> None:
        """Count the decode steps that a round has lost; below 0 it has gained them."""
        self.lost = max(-CREDIT, self.lost + lost)
        if self.lost <= -CREDIT:
            self.failures = 0
        elif self.lost > LOSS:
            self.pause = ceil(PAUSE * self.lost * 2 ** min(self.failures, DOUBLINGS))
            self.failures += 1
            self.lost = 0.0


class Expected(NamedTuple):
    """How many drafts of each sequence a round verifies, and its expected tokens per second."""

    lengths: list[int]
    rate: float


class AdaptivePolicy:
    """The policy of the mode auto. Keep one per pair: it learns from all texts.

    Drafters that are not `free` share the back-off.
    """

    def __init__(self, costs: Costs, block_size: int):
        self._costs = costs
        self._widths = [*(rows for rows in KNOTS if 1 < rows < block_size), block_size]
        self._learned: dict[int, Acceptance] = {}  # over all texts, by drafter
        self._counts: Counter[Plan] = Counter()
        self._drafting = BackOff()
        self._proven = False  # whether a draft that is not free was ever accepted
        self._seen = set[tuple[int, ...]]()  # shapes of rounds: the first one builds its kernels
        self._batch = Batch(1, 0.0)
        self._steps_due = STEPS  # decode steps to run now
        self._drafted = 0  # rounds since a decode step was timed
        self._anchor = ANCHORS[0]  # such rounds until one is timed again
        self._rate = 1.0  # expected in the last round with drafts
        self._answer = 0, 0, 0.0  # tokens, passes and seconds since the newest answer began

    def new_sequence(self, drafters: int) -> list[Acceptance]:
        """What was learned so far. Ends a pause if drafts were ever accepted: the text is new."""
        self._drafting.lost = 0.0
        self._answer = 0, 0, 0.0
        if self._proven:
            self._drafting.pause = 0
        return [self._learned.setdefault(n, Acceptance()).fork() for n in range(drafters)]

    def choose_drafters(
        self, sequences: Sequence[Sequence[DraftState | None]], batch: Batch
    ) -> list[Choice | None]:
        if batch.sequences < self._batch.sequences:  # drafts cost less in a smaller batch
            self._drafting.pause = 0
        self._batch = batch
        if self._steps_due or not self._costs.known:
            return [None] * len(sequences)
        paused = self._drafting.pause > 0
        choices = [self._best(states, paused=paused) for states in sequences]
        for drafter in {choice.drafter for choice in choices if choice is not None}:
            places = [n for n, one in enumerate(choices) if one and one.drafter == drafter]
            if len(places) > 1:  # they share a pass, and so a width
                states = [state for n in places if (state := sequences[n][drafter]) is not None]
                rates = self._rates(drafter, states, batch)
                best = max(rates, key=lambda choice: rates[choice])
                for place in places:
                    choices[place] = best
        for states, choice in zip(sequences, choices, strict=True):
            for drafter, state in enumerate(states):
                if state and not state.free and (choice is None or choice.drafter != drafter):
                    state.acceptance.fade()
        return choices

    def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
        if self._steps_due > 1:
            return False
        if not self._costs.known:
            return True
        return self._best(sequence, paused=self._drafting.pause > 1) is not None

    def _best(self, states: Sequence[DraftState | None], *, paused: bool) -> Choice | None:
        """The drafter and width with the most tokens per second in a round of one sequence.

        A drafter that is not free is not compared with a decode step: the back-off counts its
        losses, and pauses it.
        """
        alone = self._batch.part(1)
        able = {
            drafter: state
            for drafter, state in enumerate(states)
            if state is not None and state.room > 1 and (state.free or not paused)
        }
        rates: dict[Choice | None, float] = {}
        if all(state.free for state in able.values()):
            rates[None] = 1 / self._costs.verify(1, alone)
        for drafter, state in able.items():
            rates.update(self._rates(drafter, [state], alone))
        return max(rates, key=lambda choice: rates[choice])

    def _options(self, drafter: int, state: DraftState) -> list[Choice]:
        """The widths of a drafter: the narrowest until a draft of a model was ever accepted."""
        widths = self._widths
        if state.free:
            widths = widths[-1:]
        elif not self._proven:
            widths = widths[:1]
        return [Choice(drafter, width) for width in widths]

    def _rates(
        self, drafter: int, states: Sequence[DraftState], batch: Batch
    ) -> dict[Choice | None, float]:
        """Tokens per second of a round with such drafts of these, by width; none is made yet."""
        options = self._options(drafter, states[0])
        survivals = [survivals_of(state, options[-1]) for state in states]
        part = batch.part(len(states))
        verify = self._verify_of(batch)
        rates: dict[Choice | None, float] = {}
        for choice in options:
            chains = [chain[: choice.width - 1] for chain in survivals]
            drafted = self._costs.draft(*choice, part)
            rates[choice] = best_lengths(chains, batch.sequences, drafted, verify).rate
        return rates

    def _verify_of(self, batch: Batch) -> Callable[[int], float]:
        return cache(lambda rows: self._costs.verify(rows, batch))

    def choose_plans(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]:
        rows = len(drafts) + other_rows
        choices = [state.choice for state in drafts if state.choice is not None]
        drafted = sum(self._drafts(choices).values())
        survivals = [survivals_of(s, c) for s, c in zip(drafts, choices, strict=True)]
        shown = [not state.free for state in drafts]
        best = best_lengths(survivals, rows, drafted, self._verify_of(self._batch))
        if len(drafts) == 1 or not self._proven or self._drafting.trying:
            # The block took time to draft: verify at least one draft, to learn what it is worth.
            least = [int(show and bool(c)) for show, c in zip(shown, survivals, strict=True)]
            best = Expected([*map(max, least, best.lengths)], best.rate)
        self._rate = best.rate
        each = zip(best.lengths, choices, strict=True)
        return [Plan(length + 1, drafted=choice.width) for length, choice in each]

    def _drafts(self, choices: Sequence[Choice]) -> dict[Part, float]:
        return {
            (f"draft {one.drafter}", knot(one.width)): self._costs.draft(
                *one, self._batch.part(count)
            )
            for one, count in Counter(choices).items()
        }

    def update(self, results: Sequence[StepResult], seconds: float | None) -> None:
        """Learn acceptance and costs, and count what drafts have gained."""
        count = len(results)
        rows = count + sum(result.verified for result in results)
        forced = rows - count - sum(result.own for result in results)
        choices = [result.choice for result in results if result.choice is not None]
        parts = self._drafts(choices)
        parts["verify", knot(rows)] = self._costs.verify(rows, self._batch)
        timed = [result for result in results if result.choice is not None and not result.free]
        shape = (rows, *(width for _, width in choices))
        spent = self._learn_costs(shape, parts, seconds)
        self._counts.update(result.plan for result in results)
        tokens, rounds, time = self._answer
        committed = sum(result.committed for result in results)
        self._answer = tokens + committed, rounds + count, time + (seconds or spent)
        gained = sum(self._update_acceptance(result) for result in results)
        if not timed:
            self._drafting.pause -= 1
        elif self._costs.known:
            step = self._costs.verify(count, self._batch)
            undrafted = self._costs.verify(count + forced, self._batch)
            self._drafting.update((spent - undrafted) / step - gained / count)

    def _learn_costs(
        self, shape: tuple[int, ...], parts: dict[Part, float], seconds: float | None
    ) -> float:
        """Learn what a round's parts take. Returns its seconds without disturbances."""
        expected = sum(parts.values())
        is_step = shape == (self._batch.sequences,)
        first = shape not in self._seen
        self._seen.add(shape)
        self._steps_due = max(0, self._steps_due - is_step)
        if not is_step:
            self._drafted += 1
            doubted = self._rate * self._costs.verify(1, self._batch) < DOUBT
            if doubted and self._drafted >= self._anchor:
                self._steps_due = STEPS
        if seconds is None or seconds <= 0:
            return expected
        if is_step and not (self._costs.known and self._batch.sequences > 1):
            late = self._costs.learn_step(seconds, self._batch, 1 + self._drafted)
            soon, most = ANCHORS
            if abs(late) > CHANGED:
                self._anchor = soon
                if late <= -LATE:  # other work has ended: what drafts lost beside it says little
                    self._drafting = BackOff()
            elif self._drafted >= self._anchor:
                self._anchor = min(most, 2 * self._anchor)
            self._drafted = 0
        elif self._costs.known and not first:
            self._drafted *= not is_step
            return self._costs.learn(parts, seconds)
        return expected

    def _update_acceptance(self, result: StepResult) -> float:
        """Learn from one sequence's drafts. Returns how many of such drafts to expect accepted."""
        if result.choice is None or result.acceptance is None or not result.own:
            return 0.0
        drafter = result.choice.drafter
        for acceptance in (result.acceptance, self._learned[drafter]):
            acceptance.update(result.confidence, result.own, result.kept, ended=result.ended)
        expected = sum(result.acceptance.survivals(result.confidence, result.own))
        if result.free:
            return expected  # what happened beyond it is luck
        tried = not self._proven or self._drafting.trying  # little backs an expectation
        self._proven |= result.kept > 0
        return result.kept if tried else expected

    @property
    def state(self) -> PolicyState:
        learned = self._learned.get(0)
        return PolicyState(
            "auto",
            self._reason,
            plans=tuple(self._counts.most_common()),
            acceptance=() if learned is None else learned.by_position,
        )

    @property
    def _reason(self) -> str:
        if not self._costs.known:
            return "plain decoding: the first tokens tell how long a pass takes"
        if self._drafting.pause > 0:
            pause = self._drafting.pause
            return f"plain decoding: drafts have lost time here; passes until a next try: {pause}"
        tokens, rounds, seconds = self._answer
        plain = 1 / self._costs.verify(1, self._batch.part(1))
        return (
            f"{tokens / max(1, rounds):.2f} tokens a pass in the newest answer, "
            f"{tokens / max(1e-9, seconds):.1f} tok/s; plain decoding has {plain:.1f}"
        )


def best_lengths(
    survivals: list[list[float]], rows: int, drafted: float, verify: Callable[[int], float]
) -> Expected:
    """The lengths with the most tokens per second, in a pass of `rows` and the drafts.

    drafted: the seconds of the drafts. verify: those of a pass, by its rows.
    """
    ranked = sorted((-p, n) for n, chain in enumerate(survivals) for p in chain)
    tokens = [*accumulate((-negative for negative, _ in ranked), initial=float(rows))]
    rates = {
        total - rows: tokens[total - rows] / (drafted + verify(total))
        for total in edges(rows, rows + len(ranked))
    }
    count = max(rates, key=lambda count: rates[count])
    verified = Counter(n for _, n in ranked[:count])
    lengths = [verified[n] for n in range(len(survivals))]
    return Expected(lengths, rates[count])


def survivals_of(state: DraftState, choice: Choice) -> list[float]:
    """For each draft of a block, the probability that it and all before it pass."""
    positions = min(choice.width, state.room) - 1
    return state.acceptance.survivals(state.confidence, positions)
