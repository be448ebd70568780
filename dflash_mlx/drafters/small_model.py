"""Classic speculative decoding: a small language model of the same vocabulary drafts.

Leviathan et al., arXiv 2211.17192. It drafts one token after another, each in a pass of its own;
sequences one after another. Rows of drafts that were accepted stay in its cache.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.models.memory import cache_bytes
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.drafts import Draft, DraftBlock, Independent, TopTokens
from dflash_mlx.speculation.sampling import Shaper

BLOCK = 6  # rows: five drafts, each a pass of the model, after the anchor
WAITING = 128  # committed tokens that are read at the latest
CHUNK = 2048  # tokens a pass


class SmallModelDrafter:
    """A small model that drafts for a target with `vocab_size` tokens; a `Drafter`."""

    taps: tuple[int, ...] = ()
    block_size = BLOCK

    def __init__(self, reader: Target, vocab_size: int):
        """`reader` runs the model, whose caches must go back to any token."""
        self.reader, self.vocab_size = reader, vocab_size
        assert not reader.make_cache().needs_snapshots

    @property
    def model(self) -> nn.Module:
        """Its weights."""
        return self.reader.model

    @property
    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return self.reader.config

    def preview(self, cache: object, anchor: int, width: int) -> None:
        """Nothing is known of drafts before they are made."""

    def row_bytes(self, item: int) -> int:
        """What a token takes in a cache, in numbers of `item` bytes."""
        return cache_bytes(self.config, 1, item)

    def make_cache(self) -> "ModelCache":
        """An empty cache."""
        return ModelCache(self)

    def draft(
        self, caches: Sequence["ModelCache"], anchors: Sequence[int], width: int
    ) -> list[DraftBlock]:
        """A block of `width` rows after each anchor; evaluates nothing."""
        return [ModelBlock(*each, width - 1) for each in zip(caches, anchors, strict=True)]


class ModelCache:
    """One sequence's rows: of committed tokens, then of drafts that may become such."""

    def __init__(self, source: SmallModelDrafter):
        self.source = source
        self._cache = source.reader.make_cache()
        self._read = 0  # committed tokens that were read
        self._waiting: list[int] = []  # and those that were not
        self._drafted: mx.array | None = None  # tokens that were read behind the committed ones

    @property
    def offset(self) -> int:
        """Tokens that were committed."""
        return self._read + len(self._waiting)

    @property
    def state(self) -> list[Any]:
        """The arrays to evaluate after `absorb`."""
        self._commit_waiting()
        return self._cache.state

    def absorb(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit tokens; those that were drafted just so are not read again."""
        kept = 0
        if self._drafted is not None:
            known = np.array(self._drafted).tolist()
            while kept < min(len(tokens), len(known)) and tokens[kept] == known[kept]:
                kept += 1
            self._drop_drafts(kept)
        self._waiting += tokens[kept:]
        if len(self._waiting) >= WAITING:
            mx.async_eval(self.state)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        self._drop_drafts()
        del self._waiting[max(0, length - self._read) :]
        if length < self._read:
            self._cache.rewind(length)
            self._read = length

    def fork(self) -> "ModelCache":
        """A copy that goes on by itself."""
        self._drop_drafts()
        twin = ModelCache(self.source)
        twin._cache, twin._read, twin._waiting = self._cache.fork(), self._read, [*self._waiting]
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """Each layer's rows of the tokens from `start` to before `end`, in arrays of their own."""
        self._commit_waiting()
        return self._cache.copy_rows(start, end)

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int] = ()) -> None:
        """Go on as if the tokens of these rows had been committed, which `copy_rows` gave."""
        self._commit_waiting()
        self._cache.extend(parts, None)
        self._read = self._cache.offset

    def fill(self, depth: int) -> None:
        """Look as if `depth` tokens had been committed, for timing; a few must have been."""
        self._commit_waiting()
        self._cache.fill(depth)
        self._read = depth

    def chain(
        self, anchor: int, count: int, choose: Callable[[mx.array], mx.array]
    ) -> tuple[mx.array, mx.array]:
        """Drafts [γ] after the anchor, by `choose(logits [1, V]) -> [1]`, and logits [γ, V]."""
        self._drop_drafts()
        tokens, rows = list[mx.array](), list[mx.array]()
        before, self._waiting = self._waiting, []
        following = mx.array([*before, anchor])
        for _ in range(count):
            rows.append(self._pass(following))
            tokens.append(choose(rows[-1]))
            following = tokens[-1]
        self._read += len(before)
        self._drafted = mx.concatenate([mx.array([anchor]), *tokens[:-1]])
        return mx.concatenate(tokens), mx.concatenate(rows)

    def _drop_drafts(self, kept: int = 0) -> None:
        """Take back the rows of drafts but the first ones, which become committed."""
        if self._drafted is not None:
            self._read += kept
            self._cache.rewind(self._read)
            self._drafted = None

    def _commit_waiting(self) -> None:
        self._drop_drafts()
        tokens, self._waiting = self._waiting, []
        for first in range(0, len(tokens), CHUNK):
            self._pass(mx.array(tokens[first : first + CHUNK]))
        self._read += len(tokens)

    def _pass(self, tokens: mx.array) -> mx.array:
        """Read tokens [S]: the logits [1, V] after the last, of the target's vocabulary."""
        rows = SequenceRows(self._cache, tokens.astype(mx.int32), tape=False, last=True)
        (found,) = self.source.reader.read([rows])
        missing = self.source.vocab_size - found.logits.shape[-1]
        if missing > 0:  # one of the two has rows for tokens that there are not
            return mx.pad(found.logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
        return found.logits[:, : self.source.vocab_size]


class ModelBlock:
    """The positions after one anchor; a `DraftBlock` that runs the model when it is asked."""

    def __init__(self, cache: ModelCache, anchor: int, positions: int):
        self._cache, self._anchor, self._positions = cache, anchor, positions

    @cached_property
    def _greedy(self) -> tuple[mx.array, mx.array]:
        def choose(logits: mx.array) -> mx.array:
            return mx.argmax(logits, axis=-1)

        return self._cache.chain(self._anchor, self._positions, choose)

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """The model's greedy answer."""
        return Draft(self._greedy[0])

    def sample(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """An answer drawn at the shaper's temperature and filters; penalties do not apply."""
        keys = iter(mx.random.split(key, self._positions))

        def choose(logits: mx.array) -> mx.array:
            return mx.random.categorical(shaper.shape(logits), key=next(keys))

        tokens, logits = self._cache.chain(self._anchor, self._positions, choose)
        return Draft(tokens, mx.softmax(shaper.shape(logits), axis=-1))

    def confidence(self) -> Callable[[], np.ndarray]:
        """The largest probability at each position of the greedy answer."""
        return Independent(self._greedy[1]).confidence()

    def top_tokens(self, count: int) -> TopTokens:
        """The likeliest tokens beside the greedy answer, as if each position stood alone."""
        return Independent(self._greedy[1]).top_tokens(count)
