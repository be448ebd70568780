"""The costs of four pairs in three quantisations on five chips, counted once and kept in a file."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, cast

from mlx.utils import tree_flatten

from dflash_mlx.engine.pair_costs import PairCosts
from dflash_mlx.hub.bits import chosen_bits
from dflash_mlx.models.cache.sizes import cache_bytes
from dflash_mlx.policy.prior import KNOTS

from .chips import Chip, chip_named
from .counted import CountedPair
from .published import published

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
WIDTHS = tuple(rows for rows in KNOTS if 2 <= rows <= 16)  # of drafted blocks
CONTEXTS = (128, 2048, 8192, 32_768, 131_072)  # tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds on the GPU of passes at one depth, and the host's seconds to build them.

    `verify`: of 1, 2, ... rows, the whole block last. `draft`: of blocks of `WIDTHS` rows.
    """

    depth: int
    verify: tuple[float, ...]
    host: float
    draft: tuple[float, ...]
    draft_host: float
    caches: float  # the bytes of the KV caches, by those of the target's weights


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A pair on a chip, with its costs by depth, as far as its memory reaches.

    `weights`: bytes of both models. `share`: bytes that a draft reads, by those of a decode step.
    """

    chip: str
    pair: str
    bits: int
    weights: int
    share: float
    costs: dict[int, Costs]

    def __str__(self) -> str:
        return f"{self.chip}, {self.pair} {self.bits} bits"


def counted_pair(name: str, bits: int) -> CountedPair:
    """A pair with this package's kernels, and drafts in the bits that the package chooses."""
    return CountedPair(
        published(name, bits), chosen_bits(None, target_quantised=bits < 16), ours=True
    )


def costs_of(pair: CountedPair, depth: int, chip: Chip) -> Costs:
    """What rounds of a pair take after `depth` tokens, without needless digits."""
    verify = [pair.verify(depth, rows, chip) for rows in range(1, pair.block + 1)]
    drafts = [pair.draft(depth, width, chip) for width in WIDTHS]
    return Costs(
        depth,
        tuple(short(one.seconds(chip)) for one in verify),
        short(chip.host * verify[-1].dispatches),
        tuple(short(one.seconds(chip)) for one in drafts),
        short(chip.host * drafts[-1].dispatches),
        short(sizes_of(pair).of_caches(depth)),
    )


def sizes_of(pair: CountedPair) -> PairCosts:
    return PairCosts(pair.whole.target, [pair.whole.drafter])


def short(seconds: float) -> float:
    """A number with the four digits that a count has."""
    return float(f"{seconds:.4g}")


def count() -> Iterator[Recorded]:
    """Count everything that fits; takes some minutes."""
    for name, bits in product(NAMES, BITS):
        pair = counted_pair(name, bits)
        models: list[Any] = [pair.whole.target.model, pair.whole.drafter.model]
        arrays: list[Any] = [at for model in models for _, at in tree_flatten(model.parameters())]
        weights = sum(array.nbytes for array in arrays)
        for chip, memory in MEMORY.items():
            free = memory - SPARE - weights
            costs: dict[int, Costs] = {}
            for depth in CONTEXTS:
                rows = depth * pair.whole.drafter.row_bytes(2)
                if cache_bytes(pair.whole.target.caches, depth) + rows <= free:
                    costs[depth] = costs_of(pair, depth, chip_named(chip))
            if costs:
                (drafting,) = sizes_of(pair).learned.drafters
                assert drafting is not None
                yield Recorded(chip, name, bits, weights, short(drafting.weights), costs)


def write(found: Iterable[Recorded]) -> None:
    """Write every cost, one line for each pair and chip."""
    lines = []
    for one in found:
        costs = [astuple(each) for each in one.costs.values()]
        head = [one.chip, one.pair, one.bits, one.weights, one.share]
        lines.append(json.dumps([*head, costs]))
    path = Path(__file__).with_name(FILE)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load() -> list[Recorded]:
    """The costs in the file."""
    data = json.loads(files("ledger").joinpath(FILE).read_text(encoding="utf-8"))
    return [
        Recorded(
            *(chip, pair, bits, weights, share),
            {
                each[0]: Costs(*cast(Any, [tuple(x) if isinstance(x, list) else x for x in each]))
                for each in costs
            },
        )
        for chip, pair, bits, weights, share, costs in data
    ]
