"""The costs of one pair at any depth: measured when they are first wanted, then kept in a file."""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from math import isfinite, log2
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.drafters.base import DraftSource
from dflash_mlx.files.checkpoint import cache_file, replace_json
from dflash_mlx.models.target import Target
from dflash_mlx.policy.costs import Costs, interpolate

from .profiler import measure

# The file that keeps what passes cost, by pair, machine and versions, in the user's cache
# folder.

FORMAT = 5
KEPT = 64  # entries of the file
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

log = logging.getLogger(__name__)


def cost_file() -> Path:
    """Where costs are kept; it need not exist."""
    return cache_file("costs.json")


def fingerprint(target: Target, drafter: DraftSource | None) -> str:
    """What the costs of a pair depend on: its shapes and types, the machine, and versions.

    Of a sharded target the shapes are those of rank 0's part, and the number of ranks, the backend
    and the machines count, too.
    """
    kernels = target.kernels
    parts = [
        json.dumps(target.config, sort_keys=True, default=str),
        weights(target.model),
        *([] if drafter is None else [repr(drafter.config), weights(drafter.model)]),
        repr(sorted(mx.device_info().items())),
        repr((mx.default_device(), use_openblas(), os.environ.get("OPENBLAS_NUM_THREADS"))),
        repr((kernels.exact, kernels.references, sorted(kernels.on or ()))),
        *map(version, ("mlx", "mlx-lm", "dflash-chat")),
        *filter(None, [target.shared_by]),
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
            log.warning("the costs in %s are of another version and are measured again", file)
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
    chain = tuple((int(rows), float(seconds)) for rows, seconds in entry["chain"])
    parts = {name: float(entry[name]) for name in entry.keys() - {"chain", "depth"}}
    costs = Costs(**parts, chain=chain, depth=int(entry["depth"]))
    rows, seconds = zip(*chain, strict=True)
    if (
        [*rows] != sorted({*rows})
        or not all(map(isfinite, (*parts.values(), *seconds)))
        or min(costs.plain, *seconds) <= 0
        or min(costs.depth, *parts.values()) < 0
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


DEPTHS = (64, 256, 1024, 4096, 8192)  # tokens of context at which costs are measured
AGAIN = 2  # times to measure again what other work was in the way of


def depth_for(depth: int, most: int = DEPTHS[-1]) -> int:
    """The depth at which to measure for a context of `depth` tokens: the nearest by proportion."""
    nearest = min(DEPTHS, key=lambda at: abs(log2(at / max(depth, 1))))
    return min(nearest, most)


class CostTable:
    """The costs of one pair by depth: `at` measures what is not known, `estimate` never does."""

    def __init__(
        self,
        target: Target,
        drafter: DraftSource | None,
        block_size: int,
        measure: Callable[[int], Costs],
    ):
        """`measure(depth)` times the pair with blocks of `block_size` rows."""
        self._measure, self._most = measure, target.context_length
        self._key = f"{fingerprint(target, drafter)}-{block_size}"
        kept = read_costs(cost_file()).items()
        mine = [(key.removeprefix(f"{self._key}-"), costs) for key, costs in kept]
        self._known = {int(at): c for at, c in mine if at.isdecimal() and not c.disturbed}
        self._estimates: dict[tuple[int, int, int], Costs] = {}

    def at(self, depth: int) -> Costs:
        """The costs at about `depth` tokens, as they were kept, or measured now."""
        near = depth_for(depth, self._most)
        if near not in self._known:
            found = self._measure(near)
            for _ in range(AGAIN):
                found = self._measure(near) if found.disturbed else found
            self._known[near] = found
            if found.disturbed or found.depth < near:
                what = "amid other work" if found.disturbed else "with little memory left"
                log.info("the costs at %d tokens were measured %s: not kept", near, what)
            else:
                write_costs(cost_file(), f"{self._key}-{near}", found)
        return self._known[near]

    def estimate(self, depth: int) -> Costs | None:
        """The costs at about `depth` tokens, from the measured depths around it; None without any.

        Between two depths they grow in proportion. Beyond the measured ones the nearest hold.
        """
        near = depth_for(depth, self._most)
        below = max((at for at in self._known if at <= near), default=None)
        above = min((at for at in self._known if at >= near), default=None)
        if below is None or above is None or below == above:
            nearest = above if below is None else below
            return None if nearest is None else self._known[nearest]
        if (near, below, above) not in self._estimates:
            share = (near - below) / (above - below)
            self._estimates[near, below, above] = replace(
                interpolate(self._known[below], self._known[above], share), depth=near
            )
        return self._estimates[near, below, above]

    def between(self, least: int, most: int) -> list[int]:
        """The depths that contexts from `least` to `most` tokens are measured at."""
        ends = depth_for(least, self._most), depth_for(most, self._most)
        return sorted({*ends, *(depth for depth in DEPTHS if ends[0] < depth < ends[1])})


def cost_table(target: Target, drafter: DraftSource | None, block_size: int) -> CostTable:
    """The table of a pair's costs with blocks of so many rows, measured in the calling thread."""
    return CostTable(
        target, drafter, block_size, lambda depth: measure(target, drafter, depth, block_size)
    )
