"""Answers that a prompt file gives, verified as drafts: the target keeps what it would say itself.

Greedy answers only. Does not know the file of answers.
"""

import mlx.core as mx
import numpy as np

from dflash_mlx.target.target import Target

from .data import TokenizedPrompt
from .taps import padded

MAX_PASS_TOKENS = 8192  # padded tokens of one verify of given answers
MAX_LOGITS = 1 << 26  # of one verify of given answers: 256 MiB in float32


def verify_given(target: Target, asked: list[tuple[str, TokenizedPrompt]]) -> dict[str, list[int]]:
    """The greedy answers up to the first difference from the given ones, by key.

    One target pass verifies a given answer, as a draft; the target's own next token is added.
    """
    known: dict[str, list[int]] = {}
    queue = sorted(asked, key=lambda item: len(item[1].tokens) + len(item[1].given))
    while queue:
        longest = len(queue[-1][1].tokens) + len(queue[-1][1].given)
        rows = max(1, min(MAX_LOGITS // (longest * target.vocab_size), MAX_PASS_TOKENS // longest))
        part, queue = queue[-rows:], queue[:-rows]
        grid = padded([(*q.tokens, *q.given)[: target.context_length] for _, q in part])
        best = np.array(mx.argmax(target.forward(mx.array(grid), None)[0], axis=-1))
        for (key, question), row in zip(part, best, strict=True):
            choice = row[len(question.tokens) - 1 :][: len(question.given) + 1].tolist()
            same = 0
            while same < len(question.given) and question.given[same] == choice[same]:
                same += 1
            known[key] = choice[: same + 1]
            if target.eos_ids & set(known[key]):
                ends = [known[key].index(t) for t in target.eos_ids if t in known[key]]
                known[key] = known[key][: min(ends) + 1]
    return known
