"""A Gemma 4 assistant as a drafter: its caches and its blocks.

It drafts one token after another, in a pass of its own for each sequence. It has no rows of its
own: it reads the caches of the sequence's target, and keeps the hidden state after the last token.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx

from dflash_mlx.drafters.chain import ChainDrafter, Choose
from dflash_mlx.models.attention import by_position
from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.models.cache.target_cache import TargetCache

from .model import Assistant, KeysValues

BLOCK = 4  # rows: three drafts after the anchor


class AssistantCache:
    """One sequence's number of tokens, and the target's hidden state [1, 1, Ht] after the last.

    The state is not known after a cut or a hit in the prefix cache, until the next token is read:
    then there is nothing to draft from.
    """

    def __init__(self, source: "AssistantDrafter"):
        self.source = source
        self.offset = 0
        self.hidden: mx.array | None = None
        self.target: TargetCache | None = None

    @property
    def state(self) -> list[mx.array]:
        return [] if self.hidden is None else [self.hidden]

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        self.offset += taps.shape[1]
        self.hidden = mx.contiguous(taps[:, -1:])  # without keeping the other rows

    def rewind(self, length: int) -> None:
        if length < self.offset:
            self.offset = length
            self.hidden = None

    def fork(self) -> "AssistantCache":
        twin = AssistantCache(self.source)
        twin.offset = self.offset
        twin.hidden = self.hidden
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """No rows: they are the target's."""
        return ()

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int]) -> None:
        self.offset += len(tokens)
        self.hidden = None


class AssistantDrafter(ChainDrafter):
    """An assistant bound to its target: the embedding, the final norm's tap, two layers' caches.

    `layers`: by type, the last of the target's layers that has keys and values of its own.
    """

    kind = "assistant"
    block_size = BLOCK

    def __init__(
        self,
        model: Assistant,
        embed: Callable[[mx.array], mx.array],
        final_norm: int,
        layers: Mapping[str, int],
    ):
        """`embed` is the target's; `final_norm` is the number of that tap."""
        self.model = model
        self.config = model.config
        self.embed = embed
        self.taps: tuple[int, ...] = (final_norm,)
        self._layers = dict(layers)

    def row_bytes(self, item: int) -> int:
        """None: what it reads is in the target's caches."""
        return 0

    def make_cache(self) -> AssistantCache:
        return AssistantCache(self)

    def follow(self, cache: AssistantCache, target: TargetCache) -> None:
        cache.target = target

    def seen(self, target: TargetCache, count: int) -> dict[str, KeysValues]:
        """What a token after the first `count` sees in the target's caches, by type of layer."""
        return {kind: newest(target.layers[n], count) for kind, n in self._layers.items()}

    def preview(self, cache: AssistantCache, anchor: int, width: int) -> Sequence[float] | None:
        """Empty where the hidden state is not known."""
        return () if cache.hidden is None else None

    def chains(
        self,
        caches: Sequence[AssistantCache],
        anchors: Sequence[int],
        count: int,
        choose: Choose,
    ) -> tuple[mx.array, mx.array]:
        """The drafts are evaluated here.

        While a draft that is not computed yet holds the target's keys, the verify after it could
        not write to them in place, and would copy them.
        """
        seen = list[dict[str, KeysValues]]()
        hidden = list[mx.array]()
        for cache in caches:
            assert cache.hidden is not None
            assert cache.target is not None
            seen.append(self.seen(cache.target, cache.offset))
            hidden.append(cache.hidden)
        following = mx.array([*anchors])
        tokens = list[mx.array]()
        rows = list[mx.array]()
        for _ in range(count):
            embeddings = mx.split(self.embed(following)[None], len(caches), axis=1)
            logits = list[mx.array]()
            for number, cache in enumerate(caches):
                hidden[number], row = self.model(
                    embeddings[number], hidden[number], seen[number], cache.offset
                )
                logits.append(row)
            rows.append(mx.concatenate(logits))
            following = choose(rows[-1])
            tokens.append(following)
        drafts = mx.stack(tokens), mx.stack(rows)
        mx.eval(drafts)
        return drafts


def newest(cache: Any, count: int) -> KeysValues:
    """Keys and values [1, Hkv, T, D] that a token after the first `count` sees in a layer's cache.

    Those of all tokens, or of as many as its window has beside the token itself.
    """
    held = by_position(cache, 0, 0, None)
    assert held is not None
    first = max(0, count + 1 - held.window - held.start) if held.window else 0
    rows = slice(first, count - held.start)
    return held.keys[..., rows, :], held.values[..., rows, :]
