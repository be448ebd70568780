"""The costs of four pairs in three quantisations on five chips, counted once and kept in a file."""

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from mlx.utils import tree_flatten

from dflash_mlx.models.memory import cache_bytes

from .costs import Costs, CountedPair
from .forecast import chip_named
from .passes import TracedPair
from .published import LARGE, PAIRS, Published

FILE = "recorded.json"
GB = 1e9
# Chips with the memory that models may use in a common Mac: Metal's recommended working set, about
# two thirds of 16 or 32 GB, three quarters of 128 GB.
MEMORY = {
    "M1": 10.7 * GB,
    "M2 Pro": 21.3 * GB,
    "M4": 21.3 * GB,
    "M4 Max": 96.0 * GB,
    "M5 Max": 96.0 * GB,
}
SPARE = 1.0 * GB  # for activations
NAMES = ("Qwen3-8B", "Qwen3.5-9B", "Qwen3.6-27B", "Qwen3-Coder-30B-A3B")
BITS = (4, 8, 16)
CONTEXTS = (128, 2048, 8192, 32_768, 131_072)  # tokens
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Recorded:
    """A pair on a chip, with its costs by depth, as far as its memory reaches.

    `weights`: bytes of both models.
    """

    chip: str
    pair: str
    bits: int
    weights: int
    costs: dict[int, Costs]

    def __str__(self) -> str:
        return f"{self.chip}, {self.pair} {self.bits} bits"

    @property
    def published(self) -> Published:
        """The shapes of the pair."""
        return published(self.pair, self.bits)


def published(name: str, bits: int) -> Published:
    """The pair of that name, quantised or, with 16 bits, not."""
    (one,) = (pair for pair in (*PAIRS, LARGE) if pair.name == f"{name}-4bit")
    mode = "none" if bits == 16 else "affine"
    return Published(f"{name} {bits}-bit", one.target, one.drafter, mode, bits)


def weights_of(pair: TracedPair) -> int:
    """Bytes of the weights of both models."""
    models: list[Any] = [pair.target.model, pair.drafter.model]
    arrays: list[Any] = [array for model in models for _, array in tree_flatten(model.parameters())]
    return sum(array.nbytes for array in arrays)


def caches_of(pair: Published, depth: int) -> int:
    """Bytes of the caches of both models after `depth` tokens."""
    return cache_bytes(dict(pair.target), depth) + cache_bytes(dict(pair.drafter), depth)


def count() -> Iterator[Recorded]:
    """Count everything that fits; takes some minutes."""
    for name, bits in product(NAMES, BITS):
        pair = CountedPair(published(name, bits))
        weights = weights_of(pair.whole)
        for chip, memory in MEMORY.items():
            free = memory - SPARE - weights
            depths = [depth for depth in CONTEXTS if caches_of(pair.pair, depth) <= free]
            if depths:
                on = pair.on(chip_named(chip))
                yield Recorded(chip, name, bits, weights, {d: on.at(d) for d in depths})


def shortest(costs: Costs) -> list[Any]:
    """The numbers of some costs without needless digits."""

    def short(seconds: float) -> float:
        return float(f"{seconds:.{DIGITS}g}")

    depth, verify, *others = astuple(costs)
    return [depth, [*map(short, verify)], *map(short, others)]


def write(found: Iterator[Recorded], path: Path) -> None:
    """Write every cost, one line for each pair and chip."""
    lines = [
        json.dumps(
            [
                *(one.chip, one.pair, one.bits, one.weights),
                [shortest(costs) for costs in one.costs.values()],
            ]
        )
        for one in found
    ]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load() -> list[Recorded]:
    """The costs in the file."""
    data = json.loads(files("ledger").joinpath(FILE).read_text(encoding="utf-8"))
    return [
        Recorded(
            *(chip, pair, bits, weights),
            {each[0]: Costs(each[0], tuple(each[1]), *each[2:]) for each in costs},
        )
        for chip, pair, bits, weights, costs in data
    ]
