"""How many tokens of a prompt a pass reads."""

from collections.abc import Iterable

from dflash_mlx.models.target import Target

from .pair_costs import is_mixed, parameters

PREFILL_STEP_SIZE = 2048  # tokens of a prompt per pass, as in mlx-lm
SIZES = 256, 512, 1024, PREFILL_STEP_SIZE
LEAST_OF_MIXTURE = 512  # a pass of fewer tokens reads nearly as many experts
WAIT = 1.0  # seconds of a pass at the prompt's start, which Ctrl-C and other requests wait for

# Head sizes for which MLX computes the attention of a prompt without writing the scores to memory
# (`use_fallback` in mlx/backend/metal/scaled_dot_product_attention.cpp, 0.32.4).
FUSED_HEAD_SIZES = (64, 72, 80, 96, 128)
SCORES = 800_000_000  # bytes of scores in a layer, unless the smallest pass writes more
SCORE_BYTES = 6  # of one score: in 16 bits, and its mask or its exponential in 32


class PromptChunks:
    """The size of a target's passes over prompts: chosen once, by its first whole pass.

    Answers in 16 bits depend on the size, so it must not follow the clock from prompt to prompt.
    tokens: the size; None until it is chosen.
    """

    def __init__(self, target: Target):
        mixed = any(is_mixed(array) for _, array in parameters(target.model))
        self._least = LEAST_OF_MIXTURE if mixed else SIZES[0]
        self._heads = heads_with_scores(target)
        self.tokens: int | None = None

    def after(self, offsets: Iterable[int]) -> int:
        """Tokens of a pass after `offsets` tokens of each sequence that it reads."""
        size = self._least if self.tokens is None else self.tokens
        longest = max(offsets)
        fitting = (
            n
            for n in SIZES
            if self._least <= n <= size and SCORE_BYTES * self._heads * n * (longest + n) <= SCORES
        )
        return max(fitting, default=min(size, self._least))

    def update(self, read: int, seconds: float) -> None:
        """Choose the size, if this was the first whole pass: `read` tokens in `seconds`."""
        if self.tokens is None and read >= self._least:
            able = (n for n in SIZES if n >= self._least and n * seconds <= read * WAIT)
            self.tokens = max(able, default=self._least)


def heads_with_scores(target: Target) -> int:
    """The heads of a layer whose scores are written to memory; 0 if no layer's are.

    mlx-lm's attention to a quantised cache writes them, too.
    """
    shapes = target.attention_shapes
    fused = all(dim in FUSED_HEAD_SIZES for _, _, dim, window, _ in shapes if not window)
    if fused and shapes and not target.stock_attention and not target.kv_bits:
        return 0
    return target.heads
