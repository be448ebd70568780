"""What is known of a pair's costs before its first round: sizes, and the table of chips."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.device import Chip, device_info
from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.chain import ChainDrafter
from dflash_mlx.kernels.dispatch import item_bytes, on_cpu
from dflash_mlx.models.cache.sizes import cache_bytes
from dflash_mlx.models.linear import TAKEN
from dflash_mlx.models.target import Target
from dflash_mlx.policy.costs import Costs, Drafting, Passes
from dflash_mlx.policy.prior import CACHES, WEIGHTS

MACS = ("M1", "M2", "M4", "M4", "M5")  # M1, M2, ...: MLX runs the same kernels on M3 and M4
FEW = 8  # experts of a token, where the config does not say it


class PairCosts:
    """The costs of one pair. learned: those that its rounds correct, for all policies."""

    def __init__(self, target: Target, drafters: Sequence[Drafter]):
        parts = target.parts
        table = 0 if parts.table is None else weight_bytes(parts.table.module)
        self._head = table if parts.head is None else weight_bytes(parts.head.module)
        experts = next((target.config[name] for name in TAKEN if name in target.config), FEW)
        self._weights = weight_bytes(target.model, experts) - (table if parts.head else 0)
        self._target = target
        drafting = [None if one.model is None else self._drafting(one) for one in drafters]
        self.learned = Costs(passes_of(target.model), drafting)

    def of_caches(self, tokens: int) -> float:
        """What reading the caches of a context adds to a decode step, as a part of it."""
        target = self._target
        return cache_bytes(target.caches, tokens, item_bytes(), target.kv_bits) / self._weights

    def _drafting(self, drafter: Drafter) -> Drafting:
        weights = weight_bytes(drafter.model)
        if drafter.taps and "lm_head" not in drafter.model:
            weights += self._head
        row = cache_bytes(self._target.caches, 1, item_bytes(), self._target.kv_bits)
        return Drafting(
            passes_of(drafter.model),
            weights / self._weights,
            drafter.row_bytes(item_bytes()) / max(1, row),
            chain=isinstance(drafter, ChainDrafter),
        )


def weight_bytes(model: nn.Module, experts: int = FEW) -> int:
    """Bytes of weights that a pass of one row reads: of experts, those of one token."""
    return sum(
        array.nbytes * min(experts, len(array)) // len(array) if is_mixed(array) else array.nbytes
        for _, array in parameters(model)
    )


def parameters(model: nn.Module) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def is_mixed(array: mx.array) -> bool:
    return array.ndim == 3 and array.shape[-1] > 1 and array.shape[0] > 1


def passes_of(model: nn.Module) -> Passes:
    chip, bits, kind = kind_of(model)
    return Passes(WEIGHTS[chip, bits, kind], CACHES[chip])


def kind_of(model: nn.Module) -> tuple[str, int, str]:
    """The line of the table for a model on this machine."""
    chip = None if on_cpu() else Chip.of(str(device_info().get("architecture")))
    name = "CPU" if chip is None else MACS[min(max(chip.generation - 13, 0), len(MACS) - 1)]
    modules = cast(list[nn.Module], model.modules())
    bits = next((int(vars(module)["bits"]) for module in modules if "bits" in vars(module)), 16)
    near = min((4, 8, 16), key=lambda known: abs(known - bits))
    mixed = any(is_mixed(array) for _, array in parameters(model))
    return name, near, "mixture" if mixed and chip else "dense"
