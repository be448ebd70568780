"""The loss of DFlash 2's candidate selector: which likely token comes after the token before.

The public trainers teach it with the right token before each position, and put the right token
among the candidates where it is not.
"""

import mlx.core as mx

from dflash_mlx.drafter.selector import CandidateSelector


def selector_losses(
    selector: CandidateSelector,
    hidden: mx.array,
    candidates: mx.array,
    logits: mx.array,
    before: mx.array,
    labels: mx.array,
) -> mx.array:
    """Cross-entropy among the candidates in nats, float32 [R].

    hidden: [R, H]. candidates: ids [R, k], the label among them; logits: [R, k]. before: the token
    before each position, labels: the token there, both [R].
    """
    score = candidate_scores(selector, hidden, candidates, logits, before)
    right = mx.argmax(candidates == labels[:, None], axis=-1)[:, None]
    chosen = mx.take_along_axis(score, right, axis=-1)[:, 0]
    return mx.logsumexp(score, axis=-1) - chosen


def candidate_scores(
    selector: CandidateSelector,
    hidden: mx.array,
    candidates: mx.array,
    logits: mx.array,
    before: mx.array,
) -> mx.array:
    """S(before, b) of each candidate b, float32 [R, k]; arguments as of `selector_losses`."""
    left = selector.predecessor_codebook[before] * selector.hidden_projection(hidden)
    bonus = selector.successor_codebook[candidates] @ left[..., None]
    return logits + bonus[..., 0].astype(mx.float32)
