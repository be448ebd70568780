"""Losslessness tests: prompts, drafters of all kinds, and the answers of stock mlx-lm."""

from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import numpy as np
import tiny

from dflash_mlx import api
from dflash_mlx.drafters.dflash.config import MARKOV_HEADS
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair

SHORT = tiny.prompt_of(5, 0)
LONG = tiny.prompt_of(40, 0)
LENGTH = 16
EVERY = (*tiny.FAMILIES, *tiny.QUANTISED)
NUMBERS = {family: number for number, family in enumerate(EVERY)}


@cache
def target_of(family: str) -> Target:
    """A tiny target, the same for every call: all drafters tap the same layers."""
    return tiny.make_target(family)


@cache
def stock(family: str, prompt: tuple[int, ...], length: int = LENGTH) -> list[int]:
    return tiny.plain(target_of(family), list(prompt), length)


def drafter_of(kind: str, family: str, prompt: list[int], length: int = LENGTH) -> DFlashDrafter:
    """A drafter of this kind; scripted ones know the answer to the prompt."""
    target = target_of(family)
    if kind == "random":
        return tiny.random_drafter(target)
    if kind == "random2":
        return tiny.random_drafter(target, **tiny.dflash2_settings(target))
    if kind == "dspark":
        head = MARKOV_HEADS[NUMBERS[family] % 3]
        return tiny.random_drafter(target, **tiny.dspark_settings(target, head))
    text = prompt + stock(family, tuple(prompt), length)
    return tiny.scripted_drafter(text, wrong=kind == "wrong")


class Hinted(tiny.ScriptedCache):
    """A scripted cache that often ranks wrong tokens above the right one, so trees branch."""

    def draft_logits(self, anchor: int, width: int) -> mx.array:
        right = super().draft_logits(anchor, width)
        tokens = np.array(mx.argmax(right, axis=-1))
        logits = np.array(mx.zeros_like(right))
        for slot, token in enumerate(tokens.tolist()):
            others = (self.offset + slot) % 3
            for place, liked in enumerate((token + 7, token + 3)[:others]):
                logits[slot, liked % self.vocab] = 8.6 - place * 0.3
            logits[slot, token] = 8.0
        return mx.array(logits)


def hinted_drafter(text: Sequence[int]) -> DFlashDrafter:
    return tiny.stand_in(lambda: Hinted(text, wrong=False, vocab=tiny.VOCAB, strict=True))


def assert_lossless(pair: Pair) -> None:
    prompt = tiny.prompt_of(9)
    answer = api.generate(pair, prompt, max_tokens=16).tokens
    assert answer == tiny.plain(pair.target, prompt, 16, pair.target.eos_ids)
