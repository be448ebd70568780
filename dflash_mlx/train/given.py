"""Answers that a prompt file gives, verified as drafts: the target keeps what it would say itself.

Greedy answers only. Does not know the file of answers.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from dflash_mlx.target.packed import SequenceRows
from dflash_mlx.target.target import Target

ROWS = 2048  # tokens of a pass
LOGITS = 1 << 26  # of a pass: 256 MiB in float32


def verify_given(target: Target, prompt: Sequence[int], given: Sequence[int]) -> list[int]:
    """The greedy answer to a prompt up to its first difference from the given one, or its end.

    The target's own token at the difference, or after all that was given, is the last.
    """
    cache, text = target.make_cache(), [*prompt, *given]
    start, said = len(prompt) - 1, list[int]()
    for first in range(0, start, ROWS):
        rows = mx.array(text[first : min(first + ROWS, start)])
        target.read([SequenceRows(cache, rows, tape=False, last=True)])
        mx.eval(cache.state)
    step = max(1, min(ROWS, LOGITS // target.vocab_size))
    for first in range(start, len(text), step):
        rows = mx.array(text[first : first + step])
        (found,) = target.read([SequenceRows(cache, rows, tape=False)])
        chosen = mx.argmax(found.logits, axis=-1)
        mx.eval(chosen, cache.state)
        for place, token in enumerate(np.array(chosen).tolist(), first + 1):
            said.append(token)
            if token in target.eos_ids or token != (text[place] if place < len(text) else None):
                return said
    return said
