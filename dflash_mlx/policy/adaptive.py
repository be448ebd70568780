"""The policy of the mode auto: it chooses the draft lengths with the most tokens per second.

The latency table gives a round's seconds. Its expected tokens are one per sequence, plus the
survival of each verified draft: the probability that the draft is accepted with all before it. The
policy ranks the drafts of all sequences by survival, and verifies the first n, for the n with the
best rate. If drafting loses time against decode steps, a back-off pauses it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import ceil, exp, log

from dflash_mlx.types import Plan

from .acceptance import Acceptance
from .latency import Latencies, describe_plan
from .policy import DraftState, PolicyState, StepResult

LOSS = 0.5  # decode steps that drafting may lose before it pauses: a tenth of a second at most
CREDIT = 2.5  # decode steps of gain that can pay for later losses: enough for a bad passage
PAUSE = 15  # rounds of a pause per decode step lost, so that tries cost a fifteenth at most
DOUBLINGS = 4  # of the pause after failed tries: up to 240 rounds per decode step lost
CLOCK_RATE = 0.06  # weight of one round's time: the disturbances of many rounds even out
LATE = 0.25  # a longer delay than this logarithm counts as this one


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


class AdaptivePolicy:
    """The policy of the mode auto. Keep one per pair: it learns from all texts.

    Drafters that are not `free` share the draft's latency, and both back-offs.
    """

    def __init__(self, latencies: Latencies, block_size: int):
        self._positions = block_size - 1
        self._learned: dict[int, Acceptance] = {}  # over all texts, by drafter
        self._counts: Counter[Plan] = Counter()
        self._drafting = BackOff()
        self._reading = BackOff()  # reading the confidence
        self._proven = False  # whether a draft that is not free was ever accepted
        self._sequences = 1
        self._draft_seconds = 0.0  # of this round, with reading the confidence
        self.refresh(latencies)
        self._last = (0, 1.0, latencies.plain)  # drafts, tokens and seconds

    def refresh(self, latencies: Latencies) -> None:
        """Use these latencies from now on, and forget the clock correction."""
        self._latencies = latencies
        self._clock = ClockCorrection()
        self._verify = cache(latencies.verify)

    def new_sequence(self, drafters: int) -> list[Acceptance]:
        """What was learned so far. Ends a pause if drafts were ever accepted: the text is new."""
        self._drafting.lost = 0.0
        if self._proven:
            self._drafting.pause = 0
        return [self._learned.setdefault(n, Acceptance()).fork() for n in range(drafters)]

    def choose_drafters(
        self, sequences: Sequence[Sequence[DraftState | None]], other_rows: int = 0
    ) -> list[int | None]:
        count = len(sequences) + other_rows
        if count < self._sequences:  # drafts cost less in a smaller batch
            self._drafting.pause = 0
        self._sequences = count
        self._draft_seconds = 0.0
        return [self._best(states, paused=self._drafting.pause > 0) for states in sequences]

    def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
        return self._best(sequence, paused=self._drafting.pause > 1) is not None

    def _best(self, states: Sequence[DraftState | None], *, paused: bool) -> int | None:
        """The drafter with the most tokens per second in a round of this sequence alone.

        A drafter that is not free is not compared with a decode step: the back-off counts its
        losses, and pauses it.
        """
        choices: dict[int | None, DraftState | None] = {
            drafter: state
            for drafter, state in enumerate(states)
            if state is not None and state.room > 1 and (state.free or not paused)
        }
        if all(state is not None and state.free for state in choices.values()):
            choices = {None: None, **choices}
        if len(choices) == 1:  # in most rounds: needs no rate
            return next(iter(choices))
        return max(choices, key=lambda drafter: self._rate(choices[drafter]))

    def _rate(self, state: DraftState | None) -> float:
        """Tokens per second of one sequence at its best draft length; None is a decode step."""
        if state is None:
            return 1 / self._pass(1)
        draft_seconds = 0.0 if state.free else self._latencies.draft
        tokens = accumulate(self._survivals(state), initial=1.0)
        return max(total / (draft_seconds + self._pass(1 + n)) for n, total in enumerate(tokens))

    def wants_confidence(self) -> bool:
        return self._reading.pause <= 0

    def choose_plans(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]:
        rows = len(drafts) + other_rows
        timed = [state for state in drafts if not state.free]
        if timed:
            self._draft_seconds = self._latencies.draft + self._latencies.block * (len(timed) - 1)
        survivals = [self._survivals(state) for state in drafts]
        if any(state.confidence is not None for state in timed):
            if self._proven:
                self._count_reading(drafts, survivals, rows)
            self._draft_seconds += self._latencies.read
        elif timed:
            self._reading.pause -= 1
        lengths = self._lengths(survivals, rows)
        if not self._proven or self._drafting.trying:
            # The block took time to draft: verify at least one draft, to learn what it is worth.
            shown = [bool(chain) and not s.free for s, chain in zip(drafts, survivals, strict=True)]
            lengths = [max(int(show), n) for show, n in zip(shown, lengths, strict=True)]
        self._last = (lengths[0], *self._expected(lengths, survivals, rows))
        return [Plan(length + 1) for length in lengths]

    def _survivals(self, state: DraftState) -> list[float]:
        """Survivals of the drafts to choose from: one per block until a draft was ever accepted."""
        positions = self._positions if self._proven or state.free else 1
        return state.acceptance.survivals(state.confidence, min(positions, state.room - 1))

    def _lengths(self, survivals: list[list[float]], rows: int) -> list[int]:
        """How many drafts per sequence give the most tokens per second, beside `rows` others."""
        ranked = sorted((-p, n) for n, chain in enumerate(survivals) for p in chain)
        tokens = accumulate((-negative for negative, _ in ranked), initial=float(rows))
        rates = [
            total / (self._draft_seconds + self._pass(rows + count))
            for count, total in enumerate(tokens)
        ]
        verified = Counter(n for _, n in ranked[: rates.index(max(rates))])
        return [verified[n] for n in range(len(survivals))]

    def _expected(
        self, lengths: list[int], survivals: list[list[float]], rows: int
    ) -> tuple[float, float]:
        """Expected tokens and seconds of a round with `lengths` drafts beside `rows` others."""
        tokens = rows + sum(sum(chain[:n]) for n, chain in zip(lengths, survivals, strict=True))
        return tokens, self._draft_seconds + self._pass(rows + sum(lengths))

    def _count_reading(
        self, drafts: Sequence[DraftState], survivals: list[list[float]], rows: int
    ) -> None:
        """Count what reading the confidence loses: its time, less what better lengths save."""
        tokens, seconds = self._expected(self._lengths(survivals, rows), survivals, rows)
        pairs = zip(drafts, survivals, strict=True)
        unread = [state.acceptance.survivals(None, len(chain)) for state, chain in pairs]
        others = self._expected(self._lengths(unread, rows), survivals, rows)
        saved = others[1] * tokens / others[0] - seconds
        self._reading.update((self._latencies.read - saved) / self._pass(1))

    def _pass(self, rows: int) -> float:
        """Seconds of a pass of `rows` over this round's sequences, with the clock correction."""
        measured = self._verify(rows)
        further = self._latencies.sequence * max(0, self._sequences - 1)
        return measured * self._clock.factor(measured) + further

    def update(self, results: Sequence[StepResult], seconds: float | None) -> None:
        """Learn acceptance and latencies, and count what drafts have gained."""
        count = len(results)
        verified = sum(result.verified for result in results)
        forced = verified - sum(result.own for result in results)
        decode_step = self._pass(count)
        undrafted = self._pass(count + forced)
        spent = self._draft_seconds + self._pass(count + verified)
        if seconds is not None and seconds > 0:
            spent = self._clock.update(self._verify(count + verified), spent, seconds)
        self._counts.update(result.plan for result in results)
        gained = sum(self._update_acceptance(result) for result in results)
        if any(result.drafter is not None and not result.free for result in results):
            self._drafting.update((spent - undrafted) / decode_step - gained / count)
        else:
            self._drafting.pause -= 1

    def _update_acceptance(self, result: StepResult) -> float:
        """Learn from one sequence's drafts. Returns how many of such drafts to expect accepted."""
        if result.drafter is None or result.acceptance is None or not result.own:
            return 0.0
        for acceptance in (result.acceptance, self._learned[result.drafter]):
            acceptance.update(result.confidence, result.own, result.kept, ended=result.ended)
        if not self._proven and not result.free:  # only the drafter's confidence backs expectations
            self._proven = result.kept > 0
            return result.kept
        return sum(result.acceptance.survivals(result.confidence, result.own))  # the rest is luck

    @property
    def state(self) -> PolicyState:
        length, tokens, seconds = self._last
        reason = (
            f"{describe_plan(Plan(length + 1))}: {tokens:.1f} tokens expected in "
            f"{1000 * seconds:.1f} ms, {tokens / seconds:.0f} tok/s against "
            f"{1 / self._latencies.plain:.0f} with plain decoding"
        )
        if self._drafting.pause > 0:
            pause = self._drafting.pause
            reason = f"plain decoding: drafts have lost time here; passes until a next try: {pause}"
        learned = self._learned.get(0)
        return PolicyState(
            "auto",
            reason,
            plans=tuple(self._counts.most_common()),
            acceptance=() if learned is None else learned.by_position,
        )


class ClockCorrection:
    """How much longer passes take than was measured: moving averages of logarithms.

    One average is for all passes (heat, other work on the machine). The others are for single
    widths, by their measured seconds; only these change which plan is best.
    """

    def __init__(self) -> None:
        self._common = 0.0
        self._widths: dict[float, float] = {}

    def factor(self, measured: float) -> float:
        """The correction of a pass that was measured at `measured` seconds, relative to others."""
        return exp(self._widths.get(measured, 0.0))

    def update(self, measured: float, expected: float, seconds: float) -> float:
        """Learn from a round with such a pass that took `seconds` instead of `expected`.

        Returns its seconds without the delay that all rounds share, its own delay up to LATE.
        """
        late = log(seconds / expected) - self._common
        late = max(-LATE, min(LATE, late))
        self._common += CLOCK_RATE * late
        self._widths[measured] = self._widths.get(measured, 0.0) + CLOCK_RATE * late
        return expected * exp(late)
