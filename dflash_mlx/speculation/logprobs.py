"""Log-probabilities of an answer's tokens, by the target's own logits.

Does not know how the tokens were chosen.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from dflash_mlx.types import TokenLogprob

from .top_ids import top_ids


def read_logprobs(
    logits: mx.array, rows: Sequence[int], tokens: Sequence[int], count: int
) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of tokens [n], each by its row of logits [S, V]; computed in float32.

    With each the `count` likeliest of its row, at most V.
    """
    some = logits[mx.array(list(rows)[: len(tokens)])].astype(mx.float32)
    some = some - mx.logsumexp(some, axis=-1, keepdims=True)
    own = mx.take_along_axis(some, mx.array(list(tokens))[:, None], axis=-1)[:, 0]
    ids = (
        top_ids(some, min(count, some.shape[-1])) if count else mx.zeros((len(tokens), 0), mx.int32)
    )
    best = mx.take_along_axis(some, ids, axis=-1)
    order = mx.argsort(-best, axis=-1)
    ids, best = (mx.take_along_axis(x, order, axis=-1) for x in (ids, best))
    told = (np.array(array).tolist() for array in (own, ids, best))
    return tuple(
        TokenLogprob(token, logprob, tuple(zip(top, values, strict=True)))
        for token, logprob, top, values in zip(tokens, *told, strict=True)
    )
