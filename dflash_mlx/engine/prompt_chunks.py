"""How many tokens of a prompt a pass reads."""

from collections.abc import Iterable

from dflash_mlx.models.target import Target

from .pair_costs import is_mixed, parameters

PREFILL_STEP_SIZE = 2048  # tokens of a prompt per pass, as in mlx-lm
SIZES = 32, 64, 128, 256, 512, 1024, PREFILL_STEP_SIZE
FIRST = 256  # of a target's first pass; later ones are smaller only where attention takes most time
LEAST_OF_MIXTURE = 512  # a pass of fewer tokens reads nearly as many experts
WAIT = 0.7  # seconds of a pass, which Ctrl-C, progress and other requests wait for
NEAR = 1024  # tokens of context that add little to a pass; each doubling may have a smaller size

# Head sizes for which MLX computes the attention of a prompt without writing the scores to memory
# (`use_fallback` in mlx/backend/metal/scaled_dot_product_attention.cpp, 0.32.4).
FUSED_HEAD_SIZES = (64, 72, 80, 96, 128)
SCORES = 800_000_000  # bytes of scores in a layer, unless the smallest pass writes more
SCORE_BYTES = 6  # of one score: in 16 bits, and its mask or its exponential in 32


class PromptChunks:
    """The sizes of a target's passes over prompts, each chosen once, by its first pass.

    Answers in 16 bits depend on them, so they must not follow the clock from prompt to prompt.
    sizes: by how often the context has doubled since `NEAR` tokens.
    """

    def __init__(self, target: Target):
        mixed = any(is_mixed(array) for _, array in parameters(target.model))
        self._first = LEAST_OF_MIXTURE if mixed else FIRST
        self._least = LEAST_OF_MIXTURE if mixed else SIZES[0]
        self._heads = heads_with_scores(target)
        self.sizes: dict[int, int] = {}

    def after(self, offsets: Iterable[int]) -> int:
        """Tokens of a pass after `offsets` tokens of each sequence that it reads."""
        longest = max(offsets)
        size = self._size(doublings(longest))
        fitting = (
            n
            for n in SIZES
            if self._first <= n <= size and SCORE_BYTES * self._heads * n * (longest + n) <= SCORES
        )
        return max(fitting, default=min(size, self._first))

    def _size(self, place: int) -> int:
        """The size that was chosen here, or for the nearest shorter contexts."""
        shorter = [n for n in self.sizes if n <= place]
        return self.sizes[max(shorter)] if shorter else self._first

    def update(self, offset: int, read: int, seconds: float) -> None:
        """Choose a size, if this was the first whole pass: `read` tokens after `offset`."""
        place = doublings(offset)
        before = self._size(place)
        if place in self.sizes or read < min(before, self._first):
            return
        least, most = (self._least, before) if self.sizes else (self._first, SIZES[-1])
        able = (n for n in SIZES if least <= n <= most and n * seconds <= read * WAIT)
        self.sizes[place] = max(able, default=least)


def doublings(tokens: int) -> int:
    """How often a context has doubled since `NEAR` tokens."""
    return (tokens // NEAR).bit_length()


def heads_with_scores(target: Target) -> int:
    """The heads of a layer whose scores are written to memory; 0 if no layer's are.

    mlx-lm's attention to a quantised cache writes them, too.
    """
    shapes = target.attention_shapes
    fused = all(dim in FUSED_HEAD_SIZES for _, _, dim, window, _ in shapes if not window)
    if fused and shapes and not target.stock_attention and not target.kv_bits:
        return 0
    return target.heads
