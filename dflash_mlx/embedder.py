"""An embedding model: texts or tokens become vectors.

Qwen3-Embedding is a Qwen3 whose last hidden state after the final norm, at the last token, is the
embedding once it is normalised. Published files have no head, and leave out the `model.` of names.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
from mlx import nn
from mlx_lm.models import qwen3
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model

from .chat.template import load_tokenizer
from .engine.worker_thread import mlx_thread
from .errors import DFlashError, UsageError
from .files.checkpoint import Checkpoint, optional_json
from .hub import resolve
from .kernels.dispatch import Kernels
from .models.packed import SequenceRows
from .models.target import Target
from .types import Progress

PASS_ROWS = 1024  # of one pass; answers of other models wait for it
MODULES = "modules.json"  # of sentence-transformers, which only embedding models have
POOLING = "1_Pooling/config.json"


class HeadlessQwen3(qwen3.Model):
    """mlx-lm's Qwen3, loaded from files without a head and with names of the body alone."""

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Weights with the names of mlx-lm's model, without a head."""
        body = {name.removeprefix("model."): value for name, value in weights.items()}
        return {f"model.{n}": value for n, value in body.items() if not n.startswith("lm_head.")}


@dataclass(frozen=True, slots=True)
class Embedder:
    """A loaded embedding model. Its passes run in the thread that owns MLX."""

    name: str
    target: Target
    tokenizer: TokenizerWrapper

    @classmethod
    def load(cls, name: str, on_download: Progress | None = None) -> Self:
        """Load a model by its Hub id or folder.

        Raises DFlashError for one that is not known to be an embedding model, and as `Target.load`.
        """
        checkpoint = resolve.open_checkpoint(name, name, on_download)
        check_embedding_model(checkpoint, name)

        def read() -> Self:
            tokenizer = load_tokenizer(checkpoint)
            target = Target.load(checkpoint, frozenset(), read_model=read_headless)
            target.kernels = Kernels()  # nothing has checked others at these shapes
            target.tap((target.layers,))
            return cls(name, target, tokenizer)

        return mlx_thread().call(read)

    @property
    def dimensions(self) -> int:
        """The length of an embedding."""
        return self.target.hidden_size

    @property
    def context(self) -> int:
        """The most tokens of one text."""
        return self.target.context_length

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the token at its end that the model was trained with."""
        return self.tokenizer.encode(text, add_special_tokens=True)

    def embed(self, rows: Sequence[list[int]], dimensions: int | None = None) -> mx.array:
        """Embeddings of token ids, [N, dimensions] in float32, each of length 1.

        rows: at least one token each. Raises UsageError for dimensions that the model has not.
        """
        found = [state for batch in batches(rows) for state in self.embed_batch(batch, dimensions)]
        return mx.stack(found)

    def embed_batch(
        self, rows: Sequence[list[int]], dimensions: int | None = None
    ) -> list[mx.array]:
        """Embeddings [dimensions] of the rows of one batch, evaluated; errors as `embed`."""
        size = self.dimensions if dimensions is None else dimensions
        if not 1 <= size <= self.dimensions:
            raise UsageError(f"dimensions cannot be {size}.", hint=f"give 1 to {self.dimensions:,}")
        return mlx_thread().call(self._embed, rows, size)

    def _embed(self, rows: Sequence[list[int]], size: int) -> list[mx.array]:
        """A sequence longer than a pass is read in several, alone; others share one."""
        caches = [self.target.make_cache() for _ in rows]
        states: list[mx.array] = []
        for start in range(0, max(map(len, rows)), PASS_ROWS):
            parts = [
                SequenceRows(cache, mx.array(row[start : start + PASS_ROWS]), tape=False, last=True)
                for cache, row in zip(caches, rows, strict=True)
            ]
            states = [part.taps[0, -1] for part in self.target.read(parts)]
            mx.eval(states)
        return [normalised(state[:size]) for state in states]


def normalised(state: mx.array) -> mx.array:
    """A state [D] as a vector of length 1 in float32, evaluated; zeros stay."""
    state = state.astype(mx.float32)
    state = state / mx.maximum(mx.linalg.norm(state), 1e-12)
    mx.eval(state)
    return state


def batches(rows: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    """Rows in their order, as many at once as PASS_ROWS holds; a longer row is alone."""
    batch: list[list[int]] = []
    for row in rows:
        if batch and sum(map(len, batch)) + len(row) > PASS_ROWS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def read_headless(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """A Qwen3 without a head, and its config."""
    return load_model(
        path,
        model_config={"tie_word_embeddings": True},  # its class needs some head
        get_model_classes=lambda config: (HeadlessQwen3, qwen3.ModelArgs),
    )


def check_embedding_model(checkpoint: Checkpoint, name: str) -> None:
    """Raise DFlashError for a model that is not known to make embeddings as this module does."""
    pooling = optional_json(checkpoint.path / POOLING)
    known = checkpoint.config.get("model_type") == "qwen3"
    told = (checkpoint.path / MODULES).exists() or bool(pooling) or "embedding" in name.lower()
    if not known or not told or not pooling.get("pooling_mode_lasttoken", True):
        raise DFlashError(
            f"'{name}' is no embedding model of a known kind.",
            hint="give a Qwen3-Embedding model, such as Qwen/Qwen3-Embedding-0.6B",
        )
