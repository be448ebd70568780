"""The latencies of one pair by depth: measured when first needed, and kept in a file."""

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from math import inf, log2
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.device import device_info
from dflash_mlx.drafters.base import Drafter
from dflash_mlx.files import measurements
from dflash_mlx.files.measurements import MeasurementStore
from dflash_mlx.models.target import Target
from dflash_mlx.policy.latency import Latencies, interpolate

from .profiler import measure

# Tokens of context at which latencies are measured. A context uses the nearest depth: relative to
# a decode step, a round takes up to a tenth longer at one than at the one before, because attention
# to all tokens grows with the rows.
DEPTHS = (64, 256, 1024, 4096, 8192, 32_768, 131_072)
RETRY = 60  # seconds until latencies that were measured amid other work are measured again

log = logging.getLogger(__name__)


def read_entry(entry: dict[str, Any]) -> Latencies:
    """Read latencies from the file. Raises ValueError or TypeError if they cannot be latencies."""
    chain = tuple((int(rows), float(seconds)) for rows, seconds in entry["chain"])
    return Latencies(**{**entry, "chain": chain})


STORE = MeasurementStore(
    "costs.json", "costs", "costs", format=6, limit=64, parse=read_entry, dump=asdict
)


def fingerprint(target: Target, drafter: Drafter | None) -> str:
    """A digest of all that latencies depend on: a pair's shapes and types, machine and versions."""
    kernels = target.kernels
    return measurements.fingerprint(
        [
            json.dumps(target.config, sort_keys=True, default=str),
            weights(target.model),
            *([] if drafter is None else [repr(drafter.config), weights(drafter.model)]),
            repr(sorted(device_info().items())),
            repr((mx.default_device(), use_openblas(), os.environ.get("OPENBLAS_NUM_THREADS"))),
            repr((kernels.exact, kernels.references, sorted(kernels.on or ()))),
            repr(sorted((name, sorted(map(repr, won))) for name, won in kernels.sizes.items())),
            *map(version, ("mlx", "mlx-lm", "dflash-chat")),
            *([f"KV cache {target.kv_bits} bits"] if target.kv_bits else []),
        ]
    )


def weights(model: Any) -> str:
    """The number of weights of each type, as text."""
    sizes: dict[str, int] = {}
    for _, value in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())):
        sizes[str(value.dtype)] = sizes.get(str(value.dtype), 0) + value.size
    return repr(sorted(sizes.items()))


def depth_for(depth: int, most: int = DEPTHS[-1]) -> int:
    """The depth to measure for a context of `depth` tokens: the one with the nearest logarithm."""
    nearest = min(DEPTHS, key=lambda at: abs(log2(at / max(depth, 1))))
    return min(nearest, most)


class LatencyTable:
    """The latencies of one pair by depth. `at` measures a missing depth, `estimate` never does."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        block_size: int,
        measure: Callable[[int], Latencies],
    ):
        """`measure(depth)` times the pair with blocks of `block_size` rows."""
        self._measure = measure
        self._most = target.context_length
        self._key = f"{fingerprint(target, drafter)}-{block_size}"
        self._known: dict[int, Latencies] = {}
        for key, latencies in STORE.read().items():
            pair, _, depth = key.rpartition("-")
            if pair == self._key and depth.isdecimal():
                self._known[int(depth)] = latencies
        self._estimates: dict[int, Latencies] = {}
        self._retry_at: dict[int, float] = {}  # when to measure disturbed latencies again, by depth

    def at(self, depth: int) -> Latencies:
        """The latencies at about `depth` tokens; measures them now if they are not known.

        Those that were measured amid other work are measured again a minute later or more.
        """
        near = depth_for(depth, self._most)
        if near not in self._known or time.monotonic() > self._retry_at.get(near, inf):
            latencies = self._measure(near)
            self._known[near] = latencies
            self._estimates.clear()
            self._retry_at[near] = time.monotonic() + RETRY if latencies.disturbed else inf
            if latencies.disturbed or latencies.depth < near:
                what = "amid other work" if latencies.disturbed else "with little memory left"
                log.info("the costs at %d tokens were measured %s: not kept", near, what)
            else:
                STORE.write(f"{self._key}-{near}", latencies)
        return self._known[near]

    def estimate(self, depth: int) -> Latencies | None:
        """The latencies at about `depth` tokens, interpolated between the measured depths.

        Outside these, the latencies of the nearest one; None if no depth was measured.
        """
        near = depth_for(depth, self._most)
        if self._known and near not in self._estimates:
            below = max((at for at in self._known if at <= near), default=min(self._known))
            above = min((at for at in self._known if at >= near), default=max(self._known))
            share = (near - below) / (above - below) if below < above else 0.0
            self._estimates[near] = interpolate(self._known[below], self._known[above], share)
        return self._estimates.get(near)

    def between(self, least: int, most: int) -> list[int]:
        """The depths to measure for contexts from `least` to `most` tokens."""
        ends = depth_for(least, self._most), depth_for(most, self._most)
        return sorted({*ends, *(depth for depth in DEPTHS if ends[0] < depth < ends[1])})


def latency_table(target: Target, drafter: Drafter | None, block_size: int) -> LatencyTable:
    """The table of a pair with blocks of `block_size` rows. It measures in the calling thread."""
    return LatencyTable(
        target, drafter, block_size, lambda depth: measure(target, drafter, depth, block_size)
    )
