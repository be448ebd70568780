"""Whether the rows of one pass have the same bits as those of separate passes, in exact mode."""

import mlx.core as mx

from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.models.target import Target

from .check import bits

PROMPT = EXACT_ROWS + 1  # tokens to read first: more rows than a verify pass may have


def check_exact(target: Target, name: str) -> None:
    """Raise DFlashError if two rows have other bits in one pass than in two.

    Logits and taps are compared, also those of the next step from either cache. `name`: the
    target's name in the message.
    """
    count = min(PROMPT, target.context_length - 3)
    *prompt, first, second, third = ((7919 * n + 13) % target.vocab_size for n in range(count + 3))
    together = rows_of(target, prompt, [[first, second], [third]])
    apart = rows_of(target, prompt, [[first], [second], [third]])
    for a, b in zip(together, apart, strict=True):
        if a.dtype != b.dtype or not mx.array_equal(bits(a), bits(b)):
            raise DFlashError(
                f"'{name}' cannot be exact here: it gives two tokens other bits in one pass than "
                "in two, so some operation of MLX depends on the number of rows.",
                hint="leave exact mode off (--exact), and report it with `dflash doctor --json`",
            )


def rows_of(target: Target, prompt: list[int], passes: list[list[int]]) -> list[mx.array]:
    sequence = Sequence(target, None)
    sequence.read(prompt)
    rows = []
    for anchor, *others in passes:
        output = sequence.verify(anchor, mx.array(others, dtype=mx.int32))
        sequence.commit((anchor, *others), output.taps, all_kept=True)
        for logits, taps in zip(output.logits, output.taps[0], strict=True):
            rows.append(mx.concatenate([logits, taps]))
    return rows
