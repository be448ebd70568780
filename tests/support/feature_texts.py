"""Random texts with made-up taps, and the caches of heads that read the target's features."""

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import tiny

from dflash_mlx.drafters.base import Drafter


class Text:
    """A random text whose taps depend on place and token, as a target's do."""

    def __init__(self, source: Drafter, width: int, seed: int = 1):
        key = mx.random.split(mx.random.key(seed))
        self.by_place = mx.random.normal((400, width), key=key[0])
        self.by_token = mx.random.normal((tiny.VOCAB, width), key=key[1])
        self.source, self.tokens = source, list[int]()

    def taps(self, start: int, tokens: list[int]) -> mx.array:
        places = self.by_place[start : start + len(tokens)]
        return (places + self.by_token[mx.array(tokens)])[None]

    def fresh(self, tokens: list[int]) -> Any:
        cache = self.source.make_cache()
        cache.append(self.taps(0, tokens), tokens)
        return cache


def check_cache(source: Drafter, width: int, drafts_of: Callable[[Any, int], Any]) -> None:
    """Random rounds: accepted drafts, others, cuts, copies, against a fresh cache.

    `width` is that of the taps. `drafts_of(cache, anchor)` drafts four tokens or more; its result
    begins with a chain, or is one.
    """
    dice, text = random.Random(5), Text(source, width)
    tokens = tiny.prompt_of(9)
    cache = text.fresh(tokens)
    for _ in range(25):
        anchor = dice.randrange(96)
        found = drafts_of(cache, anchor)
        assert found == drafts_of(text.fresh(tokens), anchor)
        chain = found[0] if isinstance(found, tuple) else found
        for _ in range(dice.randrange(3)):  # plain steps or a verify, read together or not
            more = [anchor, *chain[: dice.randrange(4)]]
            cache.append(text.taps(len(tokens), more), more)
            tokens = tokens + more
        what = dice.random()
        if what < 0.3:
            tokens = tokens[: dice.randrange(2, len(tokens) + 1)]
            cache.rewind(len(tokens))
        elif what < 0.5:
            original, cache = cache, cache.fork()
            original.append(text.taps(len(tokens), [1, 2]), [1, 2])  # is nothing to the fork
            drafts_of(original, 3)
        elif what < 0.7:
            cut = dice.randrange(1, len(tokens))
            parts = [cache.copy_rows(0, cut), cache.copy_rows(cut, len(tokens))]
            cache = source.make_cache()
            cache.extend(parts, tokens)
        assert cache.offset == len(tokens)
