"""Pairs whose target always generates a given text."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import tiny
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair

VOCAB = 272


def follow_script(target: Target, script: list[int]) -> None:
    """Make a target of 272 tokens predict token n + 1 of the script at every position n."""
    read_honestly = target.read

    def read(parts: Sequence[SequenceRows], *, at_once: bool = False) -> list[SequencePass]:
        passes = []
        starts = [part.cache.offset for part in parts]
        for start, part, done in zip(starts, parts, read_honestly(parts), strict=True):
            following = script[start + 1 : start + 1 + part.tokens.size]
            logits = 20 * mx.eye(VOCAB)[mx.array(following)][-len(done.logits) :]
            passes.append(SequencePass(0 * done.logits + logits, done.taps))
        return passes

    target.read = read  # type: ignore[method-assign]


def speaking(
    text: str, tokenizer: TokenizerWrapper, prompt: list[int], *, strict: bool = True
) -> Pair:
    """A pair whose target generates `text` after a prompt, and then ends.

    If `strict`, its drafter raises AssertionError when the tokens differ from the script.
    """
    target = tiny.make_target("qwen3", vocab_size=VOCAB, num_hidden_layers=3)
    target = tiny.with_ends(target, tokenizer)
    script = [*prompt, *tokenizer.encode(text, add_special_tokens=False), 256, *[0] * 16]
    follow_script(target, script)
    drafter: Any = tiny.scripted_drafter(script, vocab=VOCAB, strict=strict)
    return tiny.make_pair(target, drafter, "script", "script", tokenizer)
