"""Whether a loaded model in exact mode reads rows together with the bits that they have one by one.

The kernels are compared alone elsewhere (prove.py). Here the whole model runs, with what it takes
from MLX: its rotary embedding of a single row, for one, is another kernel than that of several.
"""

import mlx.core as mx

from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.sequence import Sequence
from dflash_mlx.target.packed import SequencePass
from dflash_mlx.target.target import Target

PROMPT = EXACT_ROWS + 1  # tokens that are read before: more than a verify has, so at once


def check_exact(target: Target, name: str) -> None:
    """DFlashError where two rows have other bits in one pass than in two.

    Logits and taps are compared, also those of the step that goes on from what both have cached.
    `name` is the target's, as the user knows it.
    """
    count = min(PROMPT, target.context_length - 3)
    *prompt, first, second, third = ((7919 * n + 13) % target.vocab_size for n in range(count + 3))
    together, apart = Sequence(target, None), Sequence(target, None)
    for sequence in (together, apart):
        sequence.read(prompt)
    found = [*rows_of(step(together, first, second)), *rows_of(step(together, third))]
    wanted = [row for token in (first, second, third) for row in rows_of(step(apart, token))]
    if not all(same_bits(a, b) for a, b in zip(found, wanted, strict=True)):
        raise DFlashError(
            f"'{name}' cannot be exact here: it gives two tokens other bits in one pass than in "
            "two, so some operation of MLX depends on the number of rows.",
            hint="leave exact mode off (--exact), and report it with `dflash doctor --json`",
        )


def step(sequence: Sequence, *tokens: int) -> SequencePass:
    """One pass over these tokens, which are kept."""
    anchor, *others = tokens
    found = sequence.verify(anchor, mx.array(others, dtype=mx.int32))
    sequence.commit(tokens, found.taps, all_kept=True)
    return found


def rows_of(found: SequencePass) -> list[mx.array]:
    """Logits and taps of each row, joined."""
    return [mx.concatenate([*row]) for row in zip(found.logits, found.taps[0], strict=True)]


def same_bits(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays of floats have the same bits."""
    unsigned = {2: mx.uint16, 4: mx.uint32}[a.dtype.size]
    return a.dtype == b.dtype and bool(mx.array_equal(a.view(unsigned), b.view(unsigned)))
