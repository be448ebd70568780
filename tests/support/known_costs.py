"""Costs of rounds that no clock changes: mode auto does the same on all machines."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_mlx.policy.costs import Batch, Costs, Drafting, Passes
from dflash_mlx.policy.prior import KNOTS

FLAT = Passes((1.0, *(1.0 + 0.01 * rows for rows in KNOTS[1:])), (0.0,) * len(KNOTS))


class KnownCosts(Costs):
    """A decode step takes a second; passes hardly more for more rows, and drafts a tenth of it."""

    def learn_step(self, seconds: float, batch: Batch, rounds: int) -> float:
        return super().learn_step(1.0, batch, rounds)

    def learn(self, parts: dict[Any, float], seconds: float) -> float:
        return sum(parts.values())


def flat_costs(drafters: int) -> Costs:
    """Costs at which drafts pay."""
    return KnownCosts(FLAT, [Drafting(FLAT, 0.1)] * drafters)


def drafts_pay(patch: pytest.MonkeyPatch) -> None:
    """Give these costs to the mode auto of all pairs."""

    def pair_costs(target: Any, drafters: Sequence[Any]) -> Any:
        return SimpleNamespace(learned=flat_costs(len(drafters)), of_caches=lambda tokens: 0.0)

    patch.setattr("dflash_mlx.engine.scheduler.PairCosts", pair_costs)
