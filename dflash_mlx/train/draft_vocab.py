"""A drafter's own, smaller vocabulary: the tokens that answers are mostly made of.

Its head is those rows of the target's head, which is most of what a small target's drafter computes
(FR-Spec, arXiv 2502.14856; `d2t` as in EAGLE-3's checkpoints). Other tokens are never drafted, and
the target still says all of them.
"""

from collections import Counter
from collections.abc import Iterable

import mlx.core as mx

from dflash_mlx.drafter.model import DraftModel
from dflash_mlx.target.target import Target

from .batches import Sequence

STEP = 64  # columns of the head at once


def frequent_tokens(target: Target, sequences: Iterable[Sequence], count: int) -> list[int]:
    """The ids, sorted, of the `count` most frequent tokens of answers; those that end one first.

    Where answers have fewer, the prompts' follow, then the lowest ids.
    """
    answers, prompts = Counter[int](), Counter[int]()
    for sequence in sequences:
        answers.update(sequence.tokens[sequence.answer :])
        prompts.update(sequence.tokens[: sequence.answer])
    ranks = (sorted(seen, key=lambda token: (-seen[token], token)) for seen in (answers, prompts))
    found = dict.fromkeys(sorted(t for t in target.eos_ids if t < target.vocab_size))
    for rank in (*ranks, range(target.vocab_size)):
        found |= dict.fromkeys(rank)
    return sorted(list(found)[:count])


def give_head(model: DraftModel, target: Target, tokens: list[int]) -> None:
    """Give a drafter of `len(tokens)` tokens its map and its head, which stay as they are."""
    ids = mx.array(tokens)
    model.d2t = (ids - mx.arange(len(tokens))).astype(mx.int32)
    model.lm_head.weight = head_rows(target, ids)
    freeze_head(model)


def freeze_head(model: DraftModel) -> None:
    """Train neither the map nor the head of a drafter with a vocabulary of its own."""
    model.freeze(keys=["d2t"], recurse=False)
    model.lm_head.freeze()


def head_rows(target: Target, ids: mx.array) -> mx.array:
    """The rows [n, H] of the target's head of these tokens, float32, however it is stored."""
    size, parts = target.hidden_size, []
    for first in range(0, size, STEP):
        unit = mx.eye(min(STEP, size - first), size, first, dtype=target.head_type or mx.float32)
        parts.append(mx.take(target.head(unit), ids, axis=-1).astype(mx.float32).T)
        mx.eval(parts[-1])
    return mx.concatenate(parts, axis=1)
