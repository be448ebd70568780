"""The draft lengths that give the most tokens per second: the policy of the mode auto.

A round's expected tokens are the survivals of the drafts that it verifies, its seconds those of the
latency table. The drafts of all sequences are put in the order of their survival, and for every
number of rows the likeliest ones are compared by what a pass of so many rows takes. Where drafts
lose time against decode steps, a back-off pauses them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, log

from dflash_mlx.types import Plan

from .acceptance import MEMORY, Acceptance
from .latency import Latencies, describe_plan
from .policy import DraftState, PolicyState, StepResult

LOSS = 0.5  # decode steps that drafts may lose before they pause: a tenth of a second at most
CREDIT = 2.5  # decode steps of gain at most that pay for later losses: a bad passage
PAUSE = 15  # decode steps of a pause for each that was lost: tries cost a fifteenth at most
DOUBLINGS = 4  # of the pause after failed tries: a drafter that became good is found in 240 steps
UNREAD = 32  # rounds until confidence that did not pay is read again: a thirtieth of its price
CLOCK_RATE = 0.06  # what one round's time changes: the disturbances of many rounds even out
LATE = 0.25  # in logarithms: a round that was later than this tells no more


@dataclass(slots=True)
class BackOff:
    """When drafts pause, the longer the more often they have lost in a row.

    `lost`: decode steps that were lost and not gained since. `pause`: rounds until the next try.
    `failures`: pauses since drafts last gained what they had lost.
    """

    lost: float = 0.0
    pause: int = 0
    failures: int = 0

    def update(self, lost: float) -> None:
        """Count a round with drafts that lost so many decode steps, or gained them (below 0)."""
        self.lost = max(-CREDIT, self.lost + lost)
        if self.lost <= -CREDIT:
            self.failures = 0
        elif self.lost > LOSS:
            self.pause = ceil(PAUSE * self.lost * 2 ** min(self.failures, DOUBLINGS))
            self.failures += 1
            self.lost = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The drafts that each sequence verifies, and what the round is expected to give and take."""

    drafts: list[int]
    tokens: float
    seconds: float


class AdaptivePolicy:
    """The policy of the mode auto; keep one for a pair, over all its texts.

    Drafters that are not `free` share the latencies of a draft, the pause, and the confidence.
    """

    def __init__(self, latencies: Latencies, block_size: int):
        self._positions = block_size - 1
        self._learned: dict[int, Acceptance] = {}  # over all texts, by drafter
        self._counts: Counter[Plan] = Counter()
        self._tokens = 0.0  # of the last rounds, older ones counting less
        self._seconds = 0.0  # that these were expected to take
        self._back_off = BackOff()
        self._proven = False  # whether a draft that is not free was ever accepted
        self._reading = [1.0, 1.0]  # tokens that reading confidence brought, and times; a guess
        self._unread = 0  # rounds since
        self._sequences = 1
        self._draft_seconds = 0.0  # of this round, reading included
        self._last = Choice([0], 1.0, latencies.plain)
        self._paused = 0
        self.refresh(latencies)

    def refresh(self, latencies: Latencies) -> None:
        """Have other latencies from now on."""
        self._latencies = latencies
        self._clock = ClockCorrection()
        self._verify = cache(latencies.verify)

    def new_sequence(self, drafters: int) -> list[Acceptance]:
        """As `Policy`. Its drafts may be better than those of other texts.

        Where drafts were ever accepted no pause goes on.
        """
        self._back_off.lost = 0.0
        if self._proven:
            self._back_off.pause = 0
        return [self._learned.setdefault(n, Acceptance()).fork() for n in range(drafters)]

    def choose_drafters(
        self, sequences: Sequence[Sequence[DraftState | None]], other_rows: int = 0
    ) -> list[int | None]:
        """As `Policy`: the drafter with the most expected tokens per second."""
        count = len(sequences) + other_rows
        if count < self._sequences:  # rows are cheaper than they were
            self._back_off.pause = 0
        self._sequences = count
        self._draft_seconds = 0.0
        return [self._best(drafts, paused=self._back_off.pause > 0) for drafts in sequences]

    def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
        """As `Policy`."""
        return self._best(sequence, paused=self._back_off.pause > 1) is not None

    def _best(self, drafts: Sequence[DraftState | None], *, paused: bool) -> int | None:
        """The best drafter by the tokens per second of such a round alone.

        One that is not free drafts unless it pauses: what it is expected to lose was counted.
        """
        able = [
            (drafter, state)
            for drafter, state in enumerate(drafts)
            if state is not None and state.room > 1 and (state.free or not paused)
        ]
        if len(able) == 1 and not able[0][1].free:
            return able[0][0]
        best = None
        fastest = 1 / self._pass(1)
        for drafter, state in able:
            positions = min(self._positions, state.room - 1)
            survivals = state.acceptance.survivals(state.confidence, positions)
            rate = self._rate_alone(survivals, 0.0 if state.free else self._latencies.draft)
            if rate > fastest or (best is None and not state.free):
                best = drafter
                fastest = max(rate, fastest)
        return best

    def _rate_alone(self, survivals: list[float], draft_seconds: float) -> float:
        """Tokens per second of a round of one sequence at its best length."""
        best = 0.0
        tokens = 1.0
        for count, survival in enumerate(survivals, 1):
            tokens += survival
            best = max(best, tokens / (draft_seconds + self._pass(1 + count)))
        return best

    def wants_confidence(self) -> bool:
        """As `Policy`: where it brought more tokens than the wait for it costs."""
        self._unread += 1
        gain, times = self._reading
        return gain / times >= self._latencies.read * self._rate or self._unread > UNREAD

    @property
    def _rate(self) -> float:
        """Tokens per second of the last rounds."""
        return self._tokens / self._seconds if self._seconds else 1 / self._latencies.plain

    def num_drafts(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]:
        """As `Policy`."""
        drafted = [state for state in drafts if not state.free]
        read = any(state.confidence is not None for state in drafted)
        if drafted:
            further = self._latencies.block * (len(drafted) - 1)
            self._draft_seconds = self._latencies.draft + further + self._latencies.read * read
        survivals = [
            state.acceptance.survivals(state.confidence, self._most(state)) for state in drafts
        ]
        # A block that took time is not thrown away: one draft more shows what it is worth.
        trying = not self._proven or self._back_off.failures > 0
        least = [int(trying and not state.free) for state in drafts]
        choice = self._choose(survivals, least, other_rows)
        if read and self._proven:
            unread = [state.acceptance.survivals(None, self._most(state)) for state in drafts]
            other = self._choose(unread, least, other_rows)
            self._count_reading(choice, other, survivals, other_rows)
        self._last = choice
        return [Plan(count + 1) for count in choice.drafts]

    def _most(self, state: DraftState) -> int:
        """The drafts that may be verified; until one was accepted, one a block shows as much."""
        positions = self._positions if self._proven or state.free else 1
        return min(positions, state.room - 1)

    def _choose(self, survivals: list[list[float]], least: list[int], other_rows: int) -> Choice:
        """How many drafts of each sequence to verify beside so many rows, at least `least`.

        The best round is not the one that is fastest by itself: it has the best rate together with
        the last rounds, to which a slow round with many tokens may add more.
        """
        ranked = sorted(
            (place >= least[sequence], -survival, sequence)
            for sequence, chain in enumerate(survivals)
            for place, survival in enumerate(chain)
        )
        first = sum(min(n, len(chain)) for n, chain in zip(least, survivals, strict=True))
        rows = len(survivals) + other_rows
        tokens = float(rows)
        best = (0, tokens, self._draft_seconds + self._pass(rows))
        fastest = 0.0
        for count in range(len(ranked) + 1):
            tokens -= ranked[count - 1][1] if count else 0.0
            seconds = self._draft_seconds + self._pass(rows + count)
            rate = (self._tokens + tokens) / (self._seconds + seconds)
            if count >= first and rate > fastest:
                best = (count, tokens, seconds)
                fastest = rate
        count, tokens, seconds = best
        drafts = Counter(sequence for *_, sequence in ranked[:count])
        return Choice([drafts[sequence] for sequence in range(len(survivals))], tokens, seconds)

    def _count_reading(
        self, choice: Choice, unread: Choice, survivals: list[list[float]], other_rows: int
    ) -> None:
        """Count the tokens that a choice is better than the one without confidence."""
        counts = [min(n, len(chain)) for n, chain in zip(unread.drafts, survivals, strict=True)]
        rows = len(survivals) + other_rows
        tokens = rows + sum(sum(chain[:n]) for n, chain in zip(counts, survivals, strict=True))
        seconds = self._draft_seconds + self._pass(rows + sum(counts))
        gain = choice.tokens - tokens - self._rate * (choice.seconds - seconds)
        self._reading = [MEMORY * self._reading[0] + max(0.0, gain), MEMORY * self._reading[1] + 1]
        self._unread = 0

    def _pass(self, rows: int) -> float:
        """Seconds of this round's pass with so many rows, corrected by the clock."""
        measured = self._verify(rows)
        further = self._latencies.sequence * max(0, self._sequences - 1)
        return measured * self._clock.factor(measured) + further

    def update(self, results: Sequence[StepResult], seconds: float | None) -> None:
        """As `Policy`: acceptance, latencies, and what drafts have gained."""
        count = len(results)
        verified = sum(result.verified for result in results)
        forced = verified - sum(result.own for result in results)
        decode_step = self._pass(count)
        undrafted = self._pass(count + forced)
        expected = self._draft_seconds + self._pass(count + verified)
        spent = expected
        if seconds is not None and seconds > 0:
            spent = self._clock.update(self._verify(count + verified), expected, seconds)
        self._tokens = MEMORY * (self._tokens + sum(result.committed for result in results))
        self._seconds = MEMORY * (self._seconds + expected)
        self._counts.update(result.plan for result in results)
        self._paused = max(0, self._back_off.pause)
        gained = sum(self._update_acceptance(result) for result in results)
        if any(result.drafter is not None and not result.free for result in results):
            self._back_off.update((spent - undrafted) / decode_step - gained / count)
        else:
            self._back_off.pause -= 1

    def _update_acceptance(self, result: StepResult) -> float:
        """Learn of one sequence's drafts; how many may be expected to be accepted of such."""
        if result.drafter is None or result.acceptance is None or not result.own:
            return 0.0
        for acceptance in (result.acceptance, self._learned[result.drafter]):
            acceptance.update(result.confidence, result.own, result.kept, ended=result.ended)
        self._proven = self._proven or (result.kept > 0 and not result.free)
        return sum(result.acceptance.survivals(result.confidence, result.own))  # the rest is luck

    @property
    def state(self) -> PolicyState:
        """What was chosen so far, and why."""
        last = self._last
        reason = (
            f"plain steps: drafts have lost time here, next try in {self._paused}"
            if self._paused
            else f"{describe_plan(Plan(last.drafts[0] + 1))}: {last.tokens:.1f} tokens expected in "
            f"{1000 * last.seconds:.1f} ms, {last.tokens / last.seconds:.0f} tok/s against "
            f"{1 / self._latencies.plain:.0f} by plain steps"
        )
        learned = self._learned.get(0)
        return PolicyState(
            "auto",
            reason,
            plans=tuple(self._counts.most_common()),
            acceptance=() if learned is None else learned.by_position,
        )


class ClockCorrection:
    """How much longer passes take than was measured: moving averages of logarithms.

    One for all passes (heat, other work on the machine) and one for each measured width, which is
    named by its seconds. Only the latter changes what is best.
    """

    def __init__(self) -> None:
        self._common = 0.0
        self._widths: dict[float, float] = {}

    def factor(self, measured: float) -> float:
        """What to multiply a pass of these seconds by, to compare it with other passes."""
        return exp(self._widths.get(measured, 0.0))

    def update(self, measured: float, expected: float, seconds: float) -> float:
        """A round with such a pass should have taken `expected` seconds and took `seconds`.

        Gives what it took without what all rounds have in common, a late round bounded.
        """
        late = log(seconds / expected) - self._common
        late = max(-LATE, min(LATE, late))
        self._common += CLOCK_RATE * late
        self._widths[measured] = self._widths.get(measured, 0.0) + CLOCK_RATE * late
        return expected * exp(late)
