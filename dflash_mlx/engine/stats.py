"""The statistics of one answer, and of a drafter since its pair was loaded."""

import time
from dataclasses import dataclass, field

from dflash_mlx.options import AcceptanceRule
from dflash_mlx.types import Block


@dataclass(slots=True)
class Stats:
    """The counts of one answer so far, and the rates that follow from them.

    committed: tokens of each pass after the prompt, with the bonus token: 1 of a decode step, 1 or
        more of a verify pass. The prefill's token is not counted.
    verifies: how many of these passes verified drafts.
    drafted, accepted: drafts that were verified, and those of them that were accepted. In a tree,
        all nodes and those on the accepted path.
    accepted_by_position: how often a draft in position 1, 2, ... was accepted.
    prompt_tokens, cached_tokens: the prompt's length, and how many of its tokens were cached.
    lost_tokens: tokens read again only because a cache lacked them or could not rewind to them.
    differs_at: the token of the prompt that differs from the cached prompt with the longest common
        beginning; None if the prompt continues a cached one, or has no beginning in common.
    generated: tokens of the answer, with a stop token.
    seed: of the answer's random numbers; None at temperature 0, and if none was given.
    accept: the acceptance rule that was used; None if a server answered.
    first_token_seconds: from the request to the first token, with every wait: for a model that is
        loaded, for other answers, for the prompt.
    prefill_seconds: the prompt's part of it; decode_seconds: from the first token to the last.
    notes: what happened to the answer that its reader should know, a sentence each.
    unknown: names of the counts that a remote server did not send.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    lost_tokens: int = 0
    differs_at: int | None = None
    seed: int | None = None
    accept: AcceptanceRule | None = None
    generated: int = 0
    committed: list[int] = field(default_factory=list)
    verifies: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    first_token_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    unknown: frozenset[str] = frozenset()
    _began: float = field(default_factory=time.perf_counter)
    _requested: float | None = None
    _first: float | None = None

    def record(self, block: Block) -> None:
        self.record_arrival()
        if self.generated:
            self.committed.append(len(block.tokens))
        self.generated += len(block.tokens)
        if block.drafted:
            self.verifies += 1
            self.drafted += block.drafted
            self.accepted += block.accepted
            missing = (block.depth or block.drafted) - len(self.accepted_by_position)
            self.accepted_by_position += [0] * missing
            for position in range(block.accepted):
                self.accepted_by_position[position] += 1

    def record_arrival(self) -> None:
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            self.prefill_seconds = now - self._began
            requested = self._began if self._requested is None else self._requested
            self.first_token_seconds = now - requested
        self.decode_seconds = now - self._first

    @property
    def acceptance_length(self) -> float:
        """τ: tokens committed per pass, verify passes and decode steps together; 1.0 without."""
        return sum(self.committed) / len(self.committed) if self.committed else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafts divided by verified drafts; 0.0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode rate: tokens after the first, divided by their seconds; 0.0 without any."""
        if self.generated < 2 or not self.decode_seconds:
            return 0.0
        return (self.generated - 1) / self.decode_seconds


FIRST_PASSES = 100
# The mode auto may verify few drafts in an answer. A drafter made for the target gets the first
# token right in half of the passes: that none of 12 is right then happens once in 4,000 runs.
FEWEST_PASSES = 12
NEARLY_NONE = 0.02  # of the passes; drafts of a random drafter are right by chance


@dataclass(slots=True)
class DraftRecord:
    """What became of the first drafts of a pair's drafter, a draft being what one pass verified.

    passes: with drafts of the drafter's own, at most 100. accepted: those of them in which at least
    one was accepted.
    """

    passes: int = 0
    accepted: int = 0

    def count(self, own: int, kept: int) -> None:
        """Count a pass that verified `own` drafts of the drafter, of which `kept` were accepted."""
        if own and self.passes < FIRST_PASSES:
            self.passes += 1
            self.accepted += kept > 0

    @property
    def is_useless(self) -> bool:
        """Whether nearly no draft was accepted, which no text explains."""
        return self.passes >= FEWEST_PASSES and self.accepted <= NEARLY_NONE * self.passes
