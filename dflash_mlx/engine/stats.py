"""The statistics of one answer, and of a drafter since its pair was loaded."""

import time
from dataclasses import dataclass, field

from dflash_mlx.types import Block


@dataclass(slots=True)
class Stats:
    """The counts of one answer so far, and the rates that follow from them.

    committed: tokens of each verify, with the bonus token; the prefill's token is not counted.
    drafted, accepted: drafts that were verified, and those of them that were accepted. In a tree,
        all nodes and those on the accepted path.
    accepted_by_position: how often a draft in position 1, 2, ... was accepted.
    prompt_tokens, cached_tokens: the prompt's length, and how many of its tokens were cached.
    lost_tokens: tokens read again only because a cache lacked them or could not rewind to them.
    differs_at: the token of the prompt that differs from the cached prompt with the longest common
        beginning; None if the prompt continues a cached one, or has no beginning in common.
    generated: tokens of the answer, with a stop token.
    seed: of the answer's random numbers; None at temperature 0.
    prefill_seconds: until the first token; decode_seconds: from the first token to the last.
    notes: what happened to the answer that its reader should know, a sentence each.
    unknown: names of the counts that a remote server did not send.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    lost_tokens: int = 0
    differs_at: int | None = None
    seed: int | None = None
    generated: int = 0
    committed: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    unknown: frozenset[str] = frozenset()
    _began: float = field(default_factory=time.perf_counter)
    _first: float | None = None

    def record(self, block: Block) -> None:
        time_now = time.perf_counter()
        if self._first is None:
            self._first = time_now
            self.prefill_seconds = time_now - self._began
        self.decode_seconds = time_now - self._first
        self.generated += len(block.tokens)
        if block.drafted:
            self.committed.append(len(block.tokens))
            self.drafted += block.drafted
            self.accepted += block.accepted
            missing = (block.depth or block.drafted) - len(self.accepted_by_position)
            self.accepted_by_position += [0] * missing
            for position in range(block.accepted):
                self.accepted_by_position[position] += 1

    @property
    def verifies(self) -> int:
        return len(self.committed)

    @property
    def acceptance_length(self) -> float:
        """τ: mean tokens committed per verify pass, with the bonus token; 1.0 without a pass."""
        return sum(self.committed) / len(self.committed) if self.committed else 1.0

    @property
    def undrafted(self) -> int:
        """Tokens that no verify pass committed: the prefill's token, and those of decode steps."""
        return self.generated - round(self.verifies * self.acceptance_length)

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
