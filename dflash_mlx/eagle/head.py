"""An EAGLE-3 head bound to its target's embedding, and to the target's head where it has none.

Knows the model and dtypes; does not know caches or drafts.
"""

from collections.abc import Callable

import mlx.core as mx

from dflash_mlx.drafter.precision import cast, float_type

from .config import EagleConfig
from .model import EagleModel

Rows = Callable[[mx.array], mx.array]


class BoundHead:
    """Everything is computed in the dtype of the head's weights."""

    def __init__(
        self, model: EagleModel, embed: Rows, head: Rows, head_type: mx.Dtype | None = None
    ):
        """`embed` and `head` are the target's, `head_type` is what its head takes (None: any)."""
        self.model = model
        self.config: EagleConfig = model.config
        self._embed, self._head, self._head_type = embed, head, head_type

    def enter(self, rows: mx.array) -> mx.array:
        """Rows of the target in the dtype of the head's weights."""
        return cast(rows, float_type(self.model.fc))

    def embed(self, ids: mx.array) -> mx.array:
        """The target's token ids [S] -> embeddings [1, S, H]."""
        own = self.model.get("embed_tokens")
        return self.enter(self._embed(ids) if own is None else own(ids))[None]

    def logits(self, hidden: mx.array) -> mx.array:
        """Hidden states [1, S, H] after the last norm -> logits [S, Vd]."""
        own = self.model.get("lm_head")
        if own is None:
            return self._head(cast(hidden, self._head_type))[0]
        return own(hidden)[0]
