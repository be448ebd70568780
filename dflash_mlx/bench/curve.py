"""What one pass costs by its width: the target's over 1, 2, 4, ... rows, and the drafter's.

Measured on random tokens; a mixture of experts reads more of its experts for them than for text.
Does not know how a width is chosen.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import mlx.core as mx

from dflash_mlx.pair import Pair
from dflash_mlx.sequence import Sequence
from dflash_mlx.thread import mlx_thread

ROWS = (1, 2, 4, 8, 16, 24, 32, 64)
PASSES = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a pass at `depth` tokens of context, medians of a few.

    verify: (rows, seconds) of the target; draft: (block size, seconds) of the drafter, or None.
    """

    depth: int
    verify: tuple[tuple[int, float], ...]
    draft: tuple[int, float] | None

    def data(self) -> dict[str, Any]:
        """The curve as a JSON object."""
        return asdict(self)


def curve_of(data: dict[str, Any]) -> Curve:
    """A curve from its JSON object; ValueError, TypeError or KeyError for another one."""
    verify = tuple((int(rows), float(seconds)) for rows, seconds in data["verify"])
    if not verify:
        raise ValueError("there are no costs")
    depth, draft = int(data["depth"]), data["draft"]
    if draft is None:
        return Curve(depth, verify, None)
    size, seconds = draft
    return Curve(depth, verify, (int(size), float(seconds)))


def measure(pair: Pair, depth: int, check: Callable[[], None] = lambda: None) -> Curve:
    """Time the passes of a pair after `depth` tokens; `check()` may raise between two passes."""
    return mlx_thread().call(time_passes, pair, depth, check)


def time_passes(pair: Pair, depth: int, check: Callable[[], None]) -> Curve:
    """`measure`, in the thread that owns MLX."""
    target, drafter = pair.target, pair.drafter
    room = target.context_length - max(ROWS) - len(ROWS) * (PASSES + 1)
    depth = max(2, min(depth, room))
    sequence = Sequence(target, drafter)
    generator = mx.random.key(0)
    tokens = mx.random.randint(0, target.vocab_size, (depth + max(ROWS),), key=generator)
    values: list[int] = tokens.tolist()  # type: ignore[assignment]
    sequence.read(values[:depth])
    works: dict[int, Callable[[], None]] = {
        rows: (lambda rows=rows: one_pass(sequence, values[-rows:])) for rows in ROWS
    }
    block, cache = 0, sequence.draft_cache
    if drafter is not None and cache is not None:
        block = drafter.block_size
        works[-block] = lambda: mx.eval(
            drafter.draft([cache], values[:1], block)[0].greedy().tokens
        )
    seconds = timed(works, check)
    verify = tuple((rows, seconds[rows]) for rows in ROWS)
    return Curve(depth, verify, (block, seconds[-block]) if block else None)


def one_pass(sequence: Sequence, tokens: list[int]) -> None:
    """Verify these tokens and keep the first, which every cache can do."""
    found = sequence.verify(tokens[0], mx.array(tokens[1:], dtype=mx.int32))
    mx.eval(mx.argmax(found.logits, axis=-1), found.taps)
    sequence.commit((tokens[0],), found.taps)


def timed(works: Mapping[int, Callable[[], None]], check: Callable[[], None]) -> dict[int, float]:
    """Each one's median of a few times, taken in turn after a first turn that does not count."""
    seconds: dict[int, list[float]] = {name: [] for name in works}
    for _ in range(PASSES + 1):
        for name, work in works.items():
            check()
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    return {name: median(values[1:]) for name, values in seconds.items()}
