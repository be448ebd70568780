"""Writes what mode auto believes before its first round: dflash_mlx/policy/prior.py.

For Macs it is counted; for CPUs it was measured, with the folders of models that are given.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

import dflash_mlx
from dflash_mlx.bench.runner import measure
from dflash_mlx.engine.pair_costs import kind_of, weight_bytes
from dflash_mlx.models.cache.sizes import cache_bytes
from dflash_mlx.policy import prior

from .chips import Chip, chip_named
from .counted import CountedPair
from .forecast import step_of
from .recorded import BITS, counted_pair

CHIPS = {
    "M1": ("M1",),
    "M2": ("M2 Pro",),
    "M4": ("M4", "M4 Max"),
    "M5": ("M5 Max",),
}
KINDS = {"dense": "Qwen3-8B", "mixture": "Qwen3-Coder-30B-A3B"}
SHALLOW, DEEP = 128, 8192  # tokens of context
Seconds = Callable[[int, int], float]  # of a pass, by rows and depth


class Line(NamedTuple):
    """What passes of one kind of model on one chip take; see `policy.costs.Passes`."""

    chip: str
    bits: int
    kind: str
    weights: tuple[float, ...]
    caches: tuple[float, ...]


def ratios(seconds: Seconds, depths: tuple[int, int], reach: float) -> tuple[list[float], ...]:
    """By rows: the pass of few tokens, and what caches add, against a decode step.

    reach: bytes of the caches between the two depths, against those of the weights.
    """
    low, high = depths
    one = seconds(1, low)
    weights = [seconds(rows, low) / one for rows in prior.KNOTS]
    added = [(seconds(rows, high) - seconds(rows, low)) / one for rows in prior.KNOTS]
    return weights, [max(0.0, extra) / reach for extra in added]


def counted() -> Iterator[Line]:
    for bits, (kind, name) in product(BITS, KINDS.items()):
        pair = counted_pair(name, bits)
        reach = reach_of(pair.whole.target, (SHALLOW, DEEP), 2)
        for chip, names in CHIPS.items():
            found = [ratios(seconds_of(pair, each), (SHALLOW, DEEP), reach) for each in names]
            yield Line(chip, bits, kind, *averages(found))


def seconds_of(pair: CountedPair, name: str) -> Seconds:
    chip: Chip = chip_named(name)
    return lambda rows, depth: step_of(pair.verify(depth, rows, chip), chip)


def reach_of(target: Any, depths: tuple[int, int], item: int) -> float:
    few, many = (cache_bytes(target.caches, depth, item) for depth in depths)
    return (many - few) / weight_bytes(target.model)


def measured(folders: Iterable[Path]) -> Iterator[Line]:
    """Of this machine, where MLX computes on the CPU."""
    for folder in folders:
        pair = dflash_mlx.load(folder, draft=None)
        curves = {depth: dict(measure(pair, depth).verify) for depth in (64, 1024)}

        def seconds(rows: int, depth: int) -> float:
            known = curves[depth]  # noqa: B023
            return float(np.interp(rows, list(known), list(known.values())))

        found = ratios(seconds, (64, 1024), reach_of(pair.target, (64, 1024), 4))
        yield Line(*kind_of(pair.target.model), *averages([found]))


def averages(found: list[tuple[list[float], ...]]) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(round(mean(column), 2) for column in zip(*lines, strict=True))
        for lines in zip(*found, strict=True)
    )


def write(lines: Iterable[Line]) -> None:
    """Replace the table between its marks."""
    path = Path(prior.__file__)
    text = path.read_text(encoding="utf-8")
    head, _ = text.split("# The table\n")
    every = list(lines)
    weights = [f'    ("{one.chip}", {one.bits}, "{one.kind}"): {one.weights},' for one in every]
    caches = []
    for chip in dict.fromkeys(one.chip for one in every):
        (average,) = averages([([*one.caches],) for one in every if one.chip == chip])
        caches.append(f'    "{chip}": {average},')
    table = ["# The table", "", "WEIGHTS = {", *weights, "}", "CACHES = {", *caches, "}", ""]
    path.write_text(head + "\n".join(table), encoding="utf-8")
