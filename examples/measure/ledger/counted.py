"""The passes of a pair, each traced once and tallied for any chip."""

from dataclasses import replace
from functools import cache

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.shapes import CONTEXT
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.kernels.verify_attention import FAR, NEAR

from .chips import Chip
from .passes import TAPS, TracedPair
from .published import Published
from .tally import Tally, raced, tally
from .trace import Graph

UNEVEN = frozenset({"layer_types", "full_attn_idxs"})  # settings of targets that name each layer
NONE = frozenset[object]()
# The package's kernels, without those that are raced.
STOCK_ATTENTION = Kernels(
    MetalLauncher(),
    sizes={"small_m_qmm": NONE, "padded_rows": NONE, "verify_attention": NONE},
)
OUR_ATTENTION = replace(STOCK_ATTENTION, sizes={"small_m_qmm": NONE, "padded_rows": NONE})


class CountedPair:
    """The tallies of a pair's passes with MLX's own kernels or, if `ours`, with this package's
    where they win its race.

    A target whose layers repeat is traced twice, with few of them, and stretched to all.
    """

    def __init__(self, pair: Published, draft_bits: int, *, ours: bool = False):
        self.ours = ours
        self.whole = TracedPair(pair, STOCK_ATTENTION if ours else Kernels(), draft_bits)
        self.block = self.whole.drafter.block_size
        period = pair.target.get("full_attention_interval", 1)
        self.repeats = pair.target["num_hidden_layers"] / period - 1
        self._pairs = [self.whole]
        if UNEVEN.isdisjoint(pair.target):
            self._pairs = [shortened(pair, count * period) for count in (1, 2)]
        self._verifies = cache(self._trace_verify)
        self._draft = cache(self.whole.draft)

    def _trace_verify(self, depth: int, rows: int, ours: bool) -> list[Graph]:
        """A verify pass and the commit of a usual round, with attention of `ours` or MLX's."""
        found: list[Graph] = []
        for pair in self._pairs:
            if self.ours:
                pair.target.kernels = OUR_ATTENTION if ours else STOCK_ATTENTION
            kept = range(min(rows, TAPS)) if rows > 1 else None
            found.append(pair.verify(depth, rows, kept=kept))
        return found

    def verify(self, depth: int, rows: int, chip: Chip) -> Tally:
        """A verify pass over `rows` rows after `depth` tokens, and the commit of a usual round.

        With one row it is a decode step of the engine.
        """
        ours = self.ours and rows > 1 and self._attention_wins(depth, rows, chip)
        return self._tally(self._verifies(depth, rows, ours), chip)

    def _attention_wins(self, depth: int, rows: int, chip: Chip) -> bool:
        """Whether a pass is no slower with this package's attention, where the self-check times."""
        timed = CONTEXT if depth <= NEAR else FAR
        stock, ours = (
            self._tally(self._verifies(timed, rows, each), chip).seconds(chip)
            for each in (False, True)
        )
        return ours <= stock

    def draft(self, depth: int, width: int, chip: Chip) -> Tally:
        """The draft of a round, as `TracedPair.draft`."""
        count = raced if self.ours else tally
        return count(self._draft(depth, width), chip)

    def _tally(self, graphs: list[Graph], chip: Chip) -> Tally:
        count = raced if self.ours else tally
        first, *more = (count(graph, chip) for graph in graphs)
        return first.stretched(more[0], self.repeats) if more else first


def shortened(pair: Published, layers: int) -> TracedPair:
    """The pair with so many layers of its target, of which one is tapped."""
    target = {**pair.target, "num_hidden_layers": layers}
    taps = {**pair.drafter["dflash_config"], "target_layer_ids": [0]}
    drafter = {**pair.drafter, "num_target_layers": layers, "dflash_config": taps}
    return TracedPair(replace(pair, target=target, drafter=drafter), Kernels())
