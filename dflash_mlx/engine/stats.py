"""The statistics of one answer."""

import time
from dataclasses import dataclass, field

from dflash_mlx.types import Block


@dataclass(slots=True)
class Stats:
    """The counts of one answer so far, and the rates that follow from them.

    committed: tokens of each verify, with the bonus token; the prefill's token is not counted.
    drafted, accepted: drafts that were verified, and accepted ones; in a tree its nodes, and those
        on the accepted path.
    accepted_by_position: how often a draft in position 1, 2, ... was accepted.
    prompt_tokens, cached_tokens: the prompt's length, and how many of its tokens were cached.
    lost_tokens: tokens that were read again only because a cache could not rewind to them.
    generated: tokens of the answer, with a stop token.
    seed: of the answer's random numbers; None at temperature 0.
    prefill_seconds: until the first token; decode_seconds: from the first token to the last.
    unknown: names of the counts that a remote server did not send.
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
        """τ: mean tokens committed per verify, bonus included; 1.0 without a verify."""
        return sum(self.committed) / len(self.committed) if self.committed else 1.0

    @property
    def undrafted(self) -> int:
        """Tokens without a verify: the prefill's token, and those of plain steps."""
        return self.generated - round(self.verifies * self.acceptance_length)

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
