"""What a user is told after an answer, each thing once where once is enough."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .totals import Totals

if TYPE_CHECKING:
    from dflash_mlx import Stats

NEARLY_FULL = 0.8  # share of the context that triggers a hint
REREAD_WARNING_TOKENS = 64  # templates that rewrite thinking cost a few tokens every turn
LOW_ACCEPTANCE_LENGTH, MIN_VERIFIES = 1.5, 40


@dataclass(slots=True)
class Hints:
    """Low acceptance, a nearly full context and a cache that could not go back.

    `low` and `full` have been told.
    """

    low: bool = False
    full: bool = False

    def after(
        self, stats: "Stats", totals: Totals, context_length: int, *, auto: bool
    ) -> list[str]:
        """The lines after an answer; with `auto` nothing is said of the acceptance."""
        found = []
        if stats.lost_tokens >= REREAD_WARNING_TOKENS:
            found.append(
                f"  this model's cache could not go back: {stats.lost_tokens:,} tokens were read "
                "again"
            )
        low = totals.verifies >= MIN_VERIFIES and totals.acceptance_length < LOW_ACCEPTANCE_LENGTH
        if low and not auto and not self.low:
            self.low = True
            found.append(
                f"  low acceptance: τ {totals.acceptance_length:.1f} over {totals.verifies} "
                "blocks; drafting costs more than it saves. Try /draft off"
            )
        used = stats.prompt_tokens + stats.generated
        if used >= NEARLY_FULL * context_length > 0 and not self.full:
            self.full = True
            found.append(
                f"  context {used:,} of {context_length:,}: soon the oldest turns will be "
                "left out. /clear begins anew"
            )
        return found
