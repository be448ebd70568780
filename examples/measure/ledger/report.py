"""The ledger of a pair as a table: dispatches and bytes of its passes, and of stock mlx-lm's."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from count.chips import Chip

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.options import SamplingParams

from .buffers import command_buffers
from .least import least
from .passes import TracedPair, sample_tree
from .trace import Graph
from .traffic import CHIP, costs

ROWS = (2, 4, 8, 16)
TREE, PROMPT = 32, 64  # rows
PACKED = 8, 2  # rows of each sequence, and sequences
BRANCHES = sample_tree(TREE)
SAMPLED = SamplingParams(temperature=1.0, seed=0)
STOCK, OFF, ON = "stock", "kernels off", "kernels on"
MEGA = 1e6
HEAD = f"{'pass':<12}{'context':>8}  {'by':<12}{'dispatches':>10}{'buffers':>9}" + "".join(
    f"{title:>11}" for title in ("read MB", "again MB", "written MB", "least MB", "x least")
)


@dataclass(frozen=True, slots=True)
class Line:
    """One pass at a depth of context, `by` stock mlx-lm or this package; sizes in bytes.

    `buffers`: command buffers. `again`: the part of `read` that was already read. `least`: what
    every pass of these rows must move.
    """

    name: str
    depth: int
    by: str
    dispatches: int
    buffers: int
    read: int
    again: int
    written: int
    least: int

    @classmethod
    def of(cls, name: str, depth: int, by: str, graph: Graph, chip: Chip = CHIP) -> "Line":
        """The sums over a graph."""
        parts = costs(graph, chip)
        return cls(
            name,
            depth,
            by,
            sum(part.dispatches for part in parts),
            command_buffers(graph, chip),
            sum(part.read for part in parts),
            sum(part.again for part in parts),
            sum(part.written for part in parts),
            least(graph),
        )

    def __str__(self) -> str:
        moved = self.read + self.written
        sizes = (self.read, self.again, self.written, self.least)
        return (
            f"{self.name:<12}{self.depth:>8,}  {self.by:<12}{self.dispatches:>10,}"
            f"{self.buffers:>9,}"
            + "".join(f"{size / MEGA:>11,.1f}" for size in sizes)
            + f"{moved / self.least:>11.2f}"
        )


def ledger(pair: TracedPair, depths: Sequence[int], chip: Chip = CHIP) -> Iterator[Line]:
    """Yield every pass at these depths on a chip, of stock mlx-lm and of this package.

    Then the acceptance of the drafts of the widest verify pass, greedy and sampled. This package is
    counted without kernels and with all of them.
    """
    for depth in depths:
        for rows in (1, *ROWS):
            name = "step" if rows == 1 else f"verify {rows}"
            yield Line.of(name, depth, STOCK, pair.stock_rows(depth, rows), chip)
            yield from lines(pair, chip, name, depth, partial(pair.verify, depth, rows))
        yield from lines(
            pair, chip, f"tree {TREE}", depth, partial(pair.verify, depth, TREE, BRANCHES)
        )
        name = "packed " + "x".join(map(str, reversed(PACKED)))
        yield from lines(pair, chip, name, depth, partial(pair.packed, depth, *PACKED))
        yield Line.of(f"prompt {PROMPT}", depth, STOCK, pair.stock_rows(depth, PROMPT), chip)
        yield from lines(pair, chip, f"prompt {PROMPT}", depth, partial(pair.prompt, depth, PROMPT))
        yield Line.of("draft", depth, OFF, pair.draft(depth), chip)
    widest = ROWS[-1]
    yield from lines(
        pair, chip, f"accept {widest}", 0, partial(pair.accept, widest, SamplingParams())
    )
    yield from lines(pair, chip, f"sample {widest}", 0, partial(pair.accept, widest, SAMPLED))


def lines(
    pair: TracedPair, chip: Chip, name: str, depth: int, traced: Callable[[], Graph]
) -> Iterator[Line]:
    """Yield one pass without kernels, and with all of them."""
    for by, kernels in both():
        pair.target.kernels = kernels
        yield Line.of(name, depth, by, traced(), chip)


def both() -> tuple[tuple[str, Kernels], ...]:
    return (OFF, Kernels()), (ON, Kernels(MetalLauncher()))
