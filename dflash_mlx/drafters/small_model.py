"""Classic speculative decoding: a small language model of the same vocabulary drafts.

Leviathan et al., arXiv 2211.17192. It drafts one token after another, each in a pass over all
sequences. The rows of accepted drafts stay in their caches.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.reasoning_parser import eos_ids_of
from dflash_mlx.chat.template import load_tokenizer
from dflash_mlx.drafters.bound import WAITING
from dflash_mlx.drafters.chain import ChainDrafter, Choose
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.models.cache.sizes import cache_bytes
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.precision import quantise
from dflash_mlx.models.target import Target, check_target
from dflash_mlx.options import AcceptanceRule

BLOCK = 6  # rows: five drafts, each a pass of the model, after the anchor
CHUNK = 2048  # tokens per pass


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    return checkpoint.format == "language model"


def check(checkpoint: Checkpoint, target: Checkpoint) -> None:
    """Raise DFlashError for a model that mlx-lm does not open; tokens are compared in `load`.

    Also for a folder that is no language model: that of a drafter of an unknown kind.
    """
    check_target(checkpoint)
    if not checkpoint.has_tokenizer:
        kinds = ", ".join(checkpoint.config.get("architectures") or ["no architecture"])
        raise DFlashError(
            f"'{checkpoint.name}' ({kinds}) is no drafter of a known kind, and without a tokenizer "
            "no language model.",
            hint="`dflash models list --all` shows the drafters that run; or use --draft lookup",
        )


def load(
    checkpoint: Checkpoint,
    target: Target,
    tokenizer: TokenizerWrapper,
    bits: int = 0,
    *,
    trust_remote_code: bool = False,
) -> "SmallModelDrafter":
    """Load a checked model; see `load_drafter`.

    Raises DFlashError if it has other tokens than the target, or layers that cannot rewind.
    """
    own = load_tokenizer(checkpoint, trust_remote_code=trust_remote_code)
    if not same_tokens(own.get_vocab(), tokenizer.get_vocab()):
        raise DFlashError(
            f"the model '{checkpoint.path.name}' has a different vocabulary than "
            f"'{target.path.name}'.",
            hint="give a smaller model of the same family, or --draft lookup",
        )
    reader = Target.load(checkpoint, eos_ids_of(own))
    reader.kernels = Kernels()
    if reader.make_cache().needs_snapshots:
        raise DFlashError(
            f"the layers of '{checkpoint.path.name}' are recurrent or slide, and cannot take "
            "drafts back.",
            hint="give a model with full attention, or --draft lookup",
        )
    quantise(reader.model, bits)
    target.tap(())
    return SmallModelDrafter(reader, target.vocab_size)


def same_tokens(own: dict[str, int], theirs: dict[str, int]) -> bool:
    """Whether each id that both vocabularies use stands for the same token in both.

    One may have more tokens at its end. An id that only one of them uses is never guessed right.
    """
    tokens = {number: token for token, number in theirs.items()}
    shared = [tokens.get(number, token) == token for token, number in own.items()]
    return all(shared) and any(number in tokens for number in own.values())


class SmallModelDrafter(ChainDrafter):
    kind = "model"
    taps: tuple[int, ...] = ()
    block_size = BLOCK
    accept: AcceptanceRule = "block"

    def __init__(self, reader: Target, vocab_size: int):
        """`reader` runs the model; its caches must be able to rewind to any token."""
        self.reader = reader
        self.vocab_size = vocab_size
        self.model: nn.Module = reader.model
        self.config: dict[str, Any] = reader.config
        assert not reader.make_cache().needs_snapshots

    def row_bytes(self, item: int) -> int:
        return cache_bytes(self.reader.caches, 1, item)

    def make_cache(self) -> "ModelCache":
        return ModelCache(self)

    def chains(
        self, caches: Sequence["ModelCache"], anchors: Sequence[int], count: int, choose: Choose
    ) -> tuple[mx.array, mx.array]:
        """Committed tokens that were not read are read in the first pass, with the anchors."""
        waiting = [cache.take_waiting() for cache in caches]
        pairs = zip(waiting, anchors, strict=True)
        following = [mx.array([*before, anchor]) for before, anchor in pairs]
        tokens = list[mx.array]()
        rows = list[mx.array]()
        for _ in range(count):
            rows.append(self.read([cache.cache for cache in caches], following))
            tokens.append(choose(rows[-1]))
            following = [*mx.split(tokens[-1], len(caches))]
        drafts = mx.stack(tokens)
        for number, (cache, before, anchor) in enumerate(
            zip(caches, waiting, anchors, strict=True)
        ):
            read = mx.concatenate([mx.array([anchor]), drafts[:-1, number]])
            cache.hold_drafts(len(before), read)
        return drafts, mx.stack(rows)

    def read(self, caches: Sequence[TargetCache], tokens: Sequence[mx.array]) -> mx.array:
        """Read tokens [S] of each sequence: logits [B, V of the target] after its last one."""
        known = self.reader.vocab_size - 1  # a target may have more tokens
        ids = [mx.minimum(token.astype(mx.int32), known) for token in tokens]
        pairs = zip(caches, ids, strict=True)
        rows = [SequenceRows(cache, ids, tape=False, last=True) for cache, ids in pairs]
        logits = mx.concatenate([output.logits for output in self.reader.read(rows)])
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:  # the models' vocabularies are padded to different sizes
            return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
        return logits[:, : self.vocab_size]


class ModelCache:
    """One sequence's rows: those of committed tokens, then those of the newest drafts."""

    def __init__(self, source: SmallModelDrafter):
        self.source = source
        self.cache = source.reader.make_cache()
        self._read = 0  # committed tokens that were read
        self._waiting: list[int] = []  # committed tokens that were not read
        self._drafted: mx.array | None = None  # tokens that were read after the committed ones

    @property
    def offset(self) -> int:
        return self._read + len(self._waiting)

    @property
    def state(self) -> list[Any]:
        self._commit_waiting()
        return self.cache.state

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit tokens; those that equal the newest drafts are not read again."""
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
        self._drop_drafts()
        del self._waiting[max(0, length - self._read) :]
        if length < self._read:
            self.cache.rewind(length)
            self._read = length

    def fork(self) -> "ModelCache":
        self._drop_drafts()
        twin = ModelCache(self.source)
        twin.cache = self.cache.fork()
        twin._read = self._read
        twin._waiting = [*self._waiting]
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        self._commit_waiting()
        return self.cache.copy_rows(start, end)

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int]) -> None:
        self._commit_waiting()
        self.cache.extend(parts, None)
        self._read = self.cache.offset

    def take_waiting(self) -> list[int]:
        """Remove the newest drafts; remove and return the committed tokens that were not read."""
        self._drop_drafts()
        tokens = self._waiting
        self._waiting = []
        return tokens

    def hold_drafts(self, count: int, tokens: mx.array) -> None:
        """The model has read `count` committed tokens, then an anchor and drafts: `tokens`."""
        self._read += count
        self._drafted = tokens

    def _drop_drafts(self, kept: int = 0) -> None:
        """Remove the rows of drafts, except for the first ones, which become committed."""
        if self._drafted is not None:
            self._read += kept
            self.cache.rewind(self._read)
            self._drafted = None

    def _commit_waiting(self) -> None:
        tokens = self.take_waiting()
        for first in range(0, len(tokens), CHUNK):
            self.source.read([self.cache], [mx.array(tokens[first : first + CHUNK])])
        self._read += len(tokens)
