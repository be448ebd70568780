"""Counts of one answer, and the rates that follow from them."""

import time
from dataclasses import dataclass, field

from dflash_mlx.types import Block

# Counts of one answer, and the rates that follow from them.


@dataclass(slots=True)
class Stats:
    """One answer in numbers; it grows while the answer does.

    committed: tokens kept of each verify, bonus included; the prefill's token is in none.
    drafted, accepted: drafts that the target checked, and kept; of a tree its nodes, and those on
        the path that was kept.
    accepted_by_position: how often a draft in position 1, 2, ... was kept.
    prompt_tokens, cached_tokens: prompt length, and how much of it was not read again.
    lost_tokens: what was read again only because a cache could not go back to it.
    generated: tokens of the answer, a stop token included.
    seed: what the answer's random numbers came from; None where nothing is drawn.
    prefill_seconds: until the first token; decode_seconds: from the first token to the last.
    unknown: names of counts that say nothing, because a server elsewhere has not told them.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    lost_tokens: int = 0
    seed: int | None = None
    generated: int = 0
    committed: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    unknown: frozenset[str] = frozenset()
    _began: float = field(default_factory=time.perf_counter)
    _first: float | None = None

    def record(self, block: Block) -> None:
        """Count one block."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            self.prefill_seconds = now - self._began
        self.decode_seconds = now - self._first
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
        """Number of verify passes."""
        return len(self.committed)

    @property
    def acceptance_length(self) -> float:
        """τ: mean tokens committed per verify, bonus included; 1.0 without a verify."""
        return sum(self.committed) / len(self.committed) if self.committed else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafts over drafts that were verified; 0.0 when there was none."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode rate: tokens after the first over the seconds they took; 0.0 without any."""
        if self.generated < 2 or not self.decode_seconds:
            return 0.0
        return (self.generated - 1) / self.decode_seconds
