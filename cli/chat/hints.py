"""Sums over the answers of a chat, and the hints that follow from an answer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..answer import Answer, is_acceptance_low

if TYPE_CHECKING:
    from dflash_mlx import Stats

# Sums over the answers of a chat


class Totals:
    def __init__(self) -> None:
        self.stats: list[Stats] = []

    def add(self, answer: Answer) -> None:
        self.stats.append(answer.stats)

    @property
    def acceptance_length(self) -> float:
        """τ over the passes of all answers; 1.0 without a pass."""
        committed = [tokens for stats in self.stats for tokens in stats.committed]
        return sum(committed) / len(committed) if committed else 1.0


# Hints after an answer

NEARLY_FULL = 0.8  # share of the context that triggers a hint
REREAD_WARNING_TOKENS = 64  # templates that rewrite thinking cost a few tokens every turn


@dataclass(slots=True)
class Hints:
    """Hints about low acceptance, a nearly full context and a cache that could not rewind.

    `low_shown` and `full_shown`: the first two are shown once, the second again after turns were
    left out or a chat was loaded. `context_length`: after the answer before.
    """

    low_shown: bool = False
    full_shown: bool = False
    context_length: int = 0

    def after(self, stats: "Stats", context_length: int, *, auto: bool) -> list[str]:
        """The hints after an answer, its notes first; `auto` gets none about acceptance."""
        hints = [f"  {note}" for note in stats.notes]
        if stats.lost_tokens >= REREAD_WARNING_TOKENS:
            hints.append(
                f"  this model's cache could not go back: {stats.lost_tokens:,} tokens were read "
                "again"
            )
        if is_acceptance_low(stats) and not auto and not self.low_shown:
            self.low_shown = True
            hints.append(
                f"  low acceptance: τ {stats.acceptance_length:.2f} with drafts in "
                f"{stats.verifies} passes; drafting costs more than it saves. Try /draft off"
            )
        if context_length < self.context_length:
            self.full_shown = False
            hints.append(
                f"  this machine is short of memory: the context holds {context_length:,} tokens "
                f"now, not {self.context_length:,}"
            )
        self.context_length = context_length
        used = stats.prompt_tokens + stats.generated
        if used >= NEARLY_FULL * context_length > 0 and not self.full_shown:
            self.full_shown = True
            hints.append(
                f"  context {used:,} of {context_length:,}: soon the oldest turns will be "
                "left out. /compact summarises them, /clear begins anew"
            )
        return hints
