"""The passes of a pair, each traced once and tallied for any GPU."""

from functools import cache

from count.chips import Chip

from dflash_mlx.kernels.dispatch import Kernels

from .costs import shortened
from .forecast import WIDTHS
from .passes import TAPS, TracedPair
from .published import Published
from .tally import Tally, stretched, tally
from .trace import Graph

UNEVEN = frozenset({"layer_types", "full_attn_idxs"})  # settings of targets that name each layer


class CountedPair:
    """The tallies of a pair's passes with MLX's own kernels.

    A target whose layers repeat is traced twice, with few of them, and stretched to all.
    """

    def __init__(self, pair: Published, draft_bits: int):
        self.whole = TracedPair(pair, Kernels(), draft_bits)
        period = pair.target.get("full_attention_interval", 1)
        self.repeats = pair.target["num_hidden_layers"] / period - 1
        self.pairs = [self.whole]
        if UNEVEN.isdisjoint(pair.target):
            self.pairs = [shortened(pair, count * period, Kernels()) for count in (1, 2)]
        self._steps = cache(lambda depth: [one.step(depth) for one in self.pairs])
        self._verifies = cache(self._trace_verify)
        self._draft = cache(self.whole.draft)

    @property
    def widths(self) -> list[int]:
        """The rows of the verify passes that a forecast compares; the last are a whole block's."""
        block = self.whole.drafter.block_size
        if self.whole.drafts_one_by_one:
            return list(range(2, block + 1))
        return [*(rows for rows in WIDTHS if rows < block), block]

    def _trace_verify(self, depth: int, rows: int) -> list[Graph]:
        """A verify pass and the commit of a usual round."""
        return [one.verify(depth, rows, kept=range(min(rows, TAPS))) for one in self.pairs]

    def step(self, depth: int, gpu: Chip) -> Tally:
        """A decode step of the engine."""
        return self._tally(self._steps(depth), gpu)

    def verify(self, depth: int, rows: int, gpu: Chip) -> Tally:
        """A verify pass over `rows` rows, and the commit of a usual round."""
        return self._tally(self._verifies(depth, rows), gpu)

    def draft(self, depth: int, rows: int, gpu: Chip) -> Tally:
        """The draft of a round of `rows` rows, as `TracedPair.draft`."""
        return tally(self._draft(depth, rows if self.whole.drafts_one_by_one else None), gpu)

    def _tally(self, graphs: list[Graph], gpu: Chip) -> Tally:
        first, *more = (tally(one, gpu) for one in graphs)
        return stretched(first, more[0], self.repeats) if more else first
