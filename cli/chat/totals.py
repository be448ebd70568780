"""Sums over the answers of a chat."""

from dataclasses import dataclass

from ..answer import Answer


@dataclass(slots=True)
class Totals:
    """Sums over all answers of one model; `uncounted`: a server did not tell some tokens."""

    answers: int = 0
    tokens: int = 0
    verifies: int = 0
    committed: int = 0
    uncounted: bool = False

    def add(self, answer: Answer) -> None:
        """Add one answer."""
        stats = answer.stats
        self.answers += 1
        self.tokens += stats.generated
        self.uncounted = self.uncounted or "generated" in stats.unknown
        self.verifies += stats.verifies
        self.committed += round(stats.verifies * stats.acceptance_length)

    @property
    def acceptance_length(self) -> float:
        """τ over all answers; 1.0 without a verify."""
        return self.committed / self.verifies if self.verifies else 1.0
