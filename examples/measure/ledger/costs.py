"""What a pair's rounds take on a chip by rows and depth: the costs that a simulated Mac has.

A target is traced with few layers, twice, because its layers repeat.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dflash_mlx.hub.bits import chosen_bits
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher

from .forecast import Chip
from .passes import TAPS, TracedPair
from .published import Published
from .raced import Clock, Pass, chosen, raced
from .trace import Graph

NEAR, FAR = 5_000, 45_000  # traced tokens of context: more than a drafter's window
NONE = frozenset[object]()
# The package's kernels, without those that are raced here.
STOCK_ATTENTION = Kernels(
    MetalLauncher(),
    sizes={"small_m_qmm": NONE, "padded_rows": NONE, "verify_attention": NONE},
)
OUR_ATTENTION = replace(STOCK_ATTENTION, sizes={"small_m_qmm": NONE, "padded_rows": NONE})


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds on the GPU of passes at one depth, and the host's seconds to build them.

    `verify`: of 1, 2, ... rows, the whole block last.
    """

    depth: int
    verify: tuple[float, ...]
    host: float
    draft: float
    draft_host: float


class CountedPair:
    """The graphs of a pair's passes, which no chip changes."""

    def __init__(self, pair: Published):
        self.pair = pair
        self.block = pair.drafter["dflash_config"]["block_size"]
        self.bits = chosen_bits(None, target_quantised=pair.mode != "none")
        period = pair.target.get("full_attention_interval", 1)
        self.repeats = pair.target["num_hidden_layers"] / period - 1
        self._short = [shortened(pair, count * period) for count in (1, 2)]
        self._verify = [list(self._traced(rows)) for rows in range(1, self.block + 1)]
        self.whole = TracedPair(pair, STOCK_ATTENTION, self.bits)
        self._draft = self.whole.draft(NEAR), self.whole.draft(FAR)

    def _traced(self, rows: int) -> Iterator[list[tuple[Graph, Graph]]]:
        """For MLX's attention and for ours: one and two periods of layers, each near and far."""
        for kernels in (STOCK_ATTENTION, OUR_ATTENTION)[: 2 if rows > 1 else 1]:
            found = []
            for pair in self._short:
                pair.target.kernels = kernels
                kept = range(min(rows, TAPS))
                found.append(
                    (pair.verify(NEAR, rows, kept=kept), pair.verify(FAR, rows, kept=kept))
                )
            yield found

    def on(self, chip: Chip) -> "ChipCosts":
        """The pair's passes on a chip."""
        clock = Clock(chip)
        verify: list[list[Pass]] = []
        for kinds in self._verify:
            verify.append([])
            for one, two in kinds:
                short, longer = (raced(*ends, (NEAR, FAR), clock) for ends in (one, two))
                verify[-1].append(short.with_layers(longer, self.repeats))
        draft = raced(*self._draft, (NEAR, FAR), clock, columns=self.pair.target["vocab_size"])
        return ChipCosts(clock, verify, draft)


class ChipCosts:
    """The passes of a pair on a chip; `verify` by rows, with MLX's attention and with ours."""

    def __init__(self, clock: Clock, verify: list[list[Pass]], draft: Pass):
        self.clock, self.verify, self.draft = clock, verify, draft

    def at(self, depth: int) -> Costs:
        """All costs after `depth` tokens."""
        passes = [chosen(kinds[0], kinds[-1], self.clock, depth) for kinds in self.verify]
        host = self.clock.chip.host
        return Costs(
            depth,
            tuple(one.seconds(self.clock, depth) for one in passes),
            host * passes[-1].dispatches,
            self.draft.seconds(self.clock, depth),
            host * self.draft.dispatches,
        )


def shortened(pair: Published, layers: int, kernels: Kernels = STOCK_ATTENTION) -> TracedPair:
    """The pair with so many layers of its target, of which one is tapped."""
    target = {**pair.target, "num_hidden_layers": layers}
    drafter = {**pair.drafter, "num_target_layers": layers}
    if taps := drafter.get("dflash_config"):
        drafter["dflash_config"] = {**taps, "target_layer_ids": [0]}
    return TracedPair(replace(pair, target=target, drafter=drafter), kernels)
