"""The costs of one pair at any depth: measured when they are first wanted, then kept in a file.

What is known at the powers of four around a depth gives the costs in between.

The file is in the user's cache folder, by pair, machine and versions; what cannot be read there is
measured again. The next conversation measures once more, and the shorter times stay: the first may
have met a busy machine. Knows when costs are stale; does not know how they are measured, or what
for.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from math import floor, isfinite, log2
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.files.user_cache import cache_file, replace_json
from dflash_mlx.pair import Pair
from dflash_mlx.policy.costs import PARTS, Costs, between, least

FIRST, LAST = 64, 8192  # depths that are measured; each is four times the one before
POWERS = tuple(4**n for n in range(3, 7))  # 64, 256, 1,024, 4,096
FORMAT = 2
RUNS = 2  # conversations that measure a depth
KEPT = 64  # entries of the file
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

log = logging.getLogger(__name__)


def depth_for(depth: int, most: int = LAST) -> int:
    """The depth at which to measure for a context of `depth` tokens: the nearest power of four."""
    power = round(log2(max(depth, 1)) / 2)
    return min(max(FIRST, 4**power), LAST, most)


def cost_file() -> Path:
    """Where costs are kept; it need not exist."""
    return cache_file("costs.json")


def fingerprint(pair: Pair) -> str:
    """What the costs of a pair depend on: its shapes and types, the machine, and versions."""
    assert pair.drafter is not None
    kernels = pair.target.kernels
    parts = [
        json.dumps(pair.target.config, sort_keys=True, default=str),
        repr(pair.drafter.config),
        *map(weights, (pair.target.model, pair.drafter.model)),
        repr(sorted(mx.device_info().items())),
        repr((mx.default_device(), use_openblas(), os.environ.get("OPENBLAS_NUM_THREADS"))),
        repr((kernels.exact, kernels.own, sorted(kernels.on or ()))),
        *map(version, ("mlx", "mlx-lm", "dflash-chat")),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def weights(model: Any) -> str:
    """Types and sizes of a model's weights."""
    found: dict[str, int] = {}
    for _, value in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())):
        found[str(value.dtype)] = found.get(str(value.dtype), 0) + value.size
    return repr(sorted(found.items()))


def read_costs(file: Path) -> dict[str, Costs]:
    """The costs in a file, by key; nothing where there is none or it is damaged."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            return {}
        entries = data["costs"].items()
    except FileNotFoundError:
        return {}
    except (OSError, *DAMAGED) as error:
        log.warning("the costs in %s are measured again: %r", file, error)
        return {}
    found = {}
    for key, entry in entries:
        try:
            found[key] = from_json(entry)
        except DAMAGED as error:
            log.warning("the costs %s in %s are measured again: %r", key, file, error)
    return found


def from_json(entry: dict[str, Any]) -> Costs:
    """Costs as they were written; ValueError for what cannot be costs."""
    chain, tree = (tuple((int(r), float(s)) for r, s in entry[name]) for name in ("chain", "tree"))
    numbers = {name: float(entry[name]) for name in PARTS}
    counts = {name: int(entry[name]) for name in ("depth", "runs")}
    costs = Costs(**{**entry, **numbers, **counts, "chain": chain, "tree": tree})
    seconds = [costs.plain, costs.draft, *(s for _, s in chain + tree)]
    rows = [[r for r, _ in found] for found in (chain, tree)]
    if (
        not chain
        or any(found != sorted(set(found)) for found in rows)
        or not all(isfinite(number) for number in (*numbers.values(), *seconds))
        or min(seconds) <= 0
        or min(*numbers.values(), *counts.values()) < 0
    ):
        raise ValueError("these are no costs")
    return costs


def write_costs(file: Path, key: str, costs: Costs) -> None:
    """Add costs to a file, whole or not at all; the newest entries stay."""
    known = read_costs(file)
    known.pop(key, None)
    entries = [*known.items(), (key, costs)][-KEPT:]
    data = {"format": FORMAT, "costs": {name: asdict(found) for name, found in entries}}
    try:
        replace_json(file, data)
    except OSError as error:
        log.warning("the costs cannot be kept in %s: %s", file, error.strerror)


class Ruler:
    """Gives the costs of one pair at a depth; asking again near that depth costs nothing."""

    def __init__(self, pair: Pair, measure: Callable[[int], Costs], *, kind: str = ""):
        """`measure(depth)` times the pair; `kind` says in what way, if there are several."""
        self._measure, self._most = measure, pair.target.context_length
        self._key = f"{fingerprint(pair)}-{kind}" if kind else fingerprint(pair)
        kept = read_costs(cost_file()).items()
        own = [(key.removeprefix(f"{self._key}-"), costs) for key, costs in kept]
        self._known = {int(at): costs for at, costs in own if at.isdecimal()}
        self._found: dict[int, Costs] = {}
        self.measured: list[int] = []

    def begin(self, depth: int) -> None:
        """A conversation begins at this depth: the costs there are measured now, if not in full."""
        near = depth_for(depth, self._most)
        known = self._known.get(near)
        if known is None or known.runs < RUNS:
            self._measure_at(near, known)

    def places(self, least: int, most: int) -> list[int]:
        """The depths that contexts from `least` to `most` tokens are measured at."""
        ends = depth_for(least, self._most), depth_for(min(most, self._most), self._most)
        powers = [depth for depth in POWERS if ends[0] < depth < ends[1]]
        return sorted({*ends, *powers})

    def at(self, depth: int) -> Costs:
        """The costs at about `depth` tokens, as they were kept, or measured now.

        What is measured is the nearest power of four; of two that are known, the costs in between
        are found by proportion, half an octave at a time. Deeper than `LAST` they stay as they are
        there. `measured` lists the depths that were.
        """
        place = round(2 * log2(min(max(depth, FIRST), LAST, self._most)))
        if place not in self._found:
            self._found[place] = self._near(2 ** (place / 2), depth_for(depth, self._most))
        return self._found[place]

    def _near(self, depth: float, measured: int) -> Costs:
        known = self._known.get(measured) or self._measure_at(measured, None)
        low = 4 ** floor(log2(depth) / 2)
        less, more = (self._known.get(min(end, self._most, LAST)) for end in (low, 4 * low))
        return known if less is None or more is None else between(less, more, depth)

    def _measure_at(self, depth: int, before: Costs | None) -> Costs:
        found = self._measure(depth)
        if before is not None:
            found = least(before, found)
        self._known[depth] = found
        self.measured.append(depth)
        self._found.clear()
        write_costs(cost_file(), f"{self._key}-{depth}", found)
        return found
