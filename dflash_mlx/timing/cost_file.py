"""The file that keeps what passes cost, by pair, machine and versions, in the user's cache folder.

What cannot be read there is measured again. Does not know how costs are measured, or used.
"""

import hashlib
import json
import logging
import os
from dataclasses import asdict
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.files.user_cache import cache_file, replace_json
from dflash_mlx.policy.costs import Costs
from dflash_mlx.speculation.source import DraftSource
from dflash_mlx.target.target import Target

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
        repr((kernels.exact, kernels.own, sorted(kernels.on or ()))),
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
