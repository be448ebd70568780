"""How fast the sums of a group are: what one row waits for, and what many bytes do."""

import time
from dataclasses import dataclass
from statistics import median

import mlx.core as mx

from .world import share

BUDGET = 1.0  # seconds for the sums of one size, roughly
MOST = 300  # sums of one size
ROW, LARGE = 4096, 16 << 20  # values of 16 bits, as a hidden state has them; bytes


@dataclass(frozen=True, slots=True)
class SumTimes:
    """Seconds of a sum of one row over all ranks (the median), and bytes a second of a large one.

    A large sum's rate is the array's bytes over its seconds, however often they travel. The slowest
    rank decides both: each rank's clock includes its waiting for the others.
    """

    row_seconds: float
    bytes_per_second: float


def time_sums(group: mx.distributed.Group, values: int = ROW) -> SumTimes:
    """Time the sums of rows of so many values; all ranks of the group have to call it."""
    row, large = mx.zeros((1, values), mx.float16), mx.zeros(LARGE // 2, mx.float16)
    mx.eval(row, large)
    return SumTimes(typical_seconds(row, group), LARGE / typical_seconds(large, group))


def typical_seconds(array: mx.array, group: mx.distributed.Group) -> float:
    """The median of as many sums as fit the budget; the ranks agree on their number."""
    one_sum(array, group)
    # Whole numbers: a sum of others may differ from rank to rank in its last bit.
    (together,) = share(group, [1 + int(1e6 * one_sum(array, group))])
    count = max(1, min(MOST, int(1e6 * BUDGET * group.size() / together)))
    return median(one_sum(array, group) for _ in range(count))


def one_sum(array: mx.array, group: mx.distributed.Group) -> float:
    """Seconds of one sum."""
    began = time.perf_counter()
    mx.eval(mx.distributed.all_sum(array, group=group))
    return time.perf_counter() - began
