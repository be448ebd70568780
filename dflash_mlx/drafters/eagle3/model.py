"""The network of an EAGLE-3 head: one decoder layer over a token and the features before it.

arXiv 2503.01840, section 3. The target's hidden states of three layers become one feature per
position (`fc`). The layer's row for token t is its embedding beside the feature of position t - 1;
after the committed tokens, the head's own last hidden state takes the feature's place. Parameter
names are those of the authors' checkpoints.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache

from dflash_mlx.drafters.dflash.model import MLP, KeysValues, spread, target_ids
from dflash_mlx.drafters.rotary import make_rope
from dflash_mlx.models.precision import cast, float_type

from .config import EagleConfig

# The parts that a head shares with its target, unless its checkpoint has them.
OWN = frozenset({"embed_tokens", "lm_head"})


class Attention(nn.Module):
    """Attention over rows [embedding, feature], which are twice as wide as its output."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        hidden = config.hidden_size
        dim = config.head_dim
        bias = config.attention_bias
        self.heads = config.num_heads
        self.kv_heads = config.num_kv_heads
        self.dim = dim
        self.q_proj = nn.Linear(2 * hidden, self.heads * dim, bias=bias)
        self.k_proj = nn.Linear(2 * hidden, self.kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(2 * hidden, self.kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=bias)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.rope = make_rope(config)

    def keys_values(self, x: mx.array, offset: int, *, level: bool = False) -> KeysValues:
        """Rows x [1, S, 2 H] from position `offset` on -> two arrays [1, nKV, S, d].

        The rows of a `level` of a tree are all at that position.
        """
        keys = self._rotated(self.k_proj(x), "k_norm", offset, level)
        values = self.v_proj(x).reshape(1, -1, self.kv_heads, self.dim)
        return keys, values.transpose(0, 2, 1, 3)

    def __call__(
        self, x: mx.array, rows: KeysValues, offset: int, mask: mx.array | None, *, level: bool
    ) -> mx.array:
        """x [1, S, 2 H] attends to keys and values [1, nKV, T, d], its own included: [1, S, H]."""
        queries = self._rotated(self.q_proj(x), "q_norm", offset, level)
        mixed = mx.fast.scaled_dot_product_attention(
            queries, *rows, scale=self.dim**-0.5, mask=mask
        )
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(1, x.shape[1], -1))

    def _rotated(self, x: mx.array, norm: str, offset: int, level: bool) -> mx.array:
        """[1, S, heads * d] -> [1, heads, S, d]."""
        x = x.reshape(1, x.shape[1], -1, self.dim)
        if norm in self:
            x = self[norm](x)
        if level:  # every row is a batch element, so none is behind another
            return self.rope(x.transpose(1, 2, 0, 3), offset=offset).transpose(2, 1, 0, 3)
        return self.rope(x.transpose(0, 2, 1, 3), offset=offset)


class Layer(nn.Module):
    """The decoder layer; embeddings and features have a norm each."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.normed_residual = config.norm_before_residual
        self.self_attn = Attention(config)
        hidden = config.hidden_size
        eps = config.rms_norm_eps
        self.mlp = MLP(hidden, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=eps)

    def write(self, embeddings: mx.array, features: mx.array, cache: KVCache) -> None:
        """Add the rows of tokens [1, S, H], with the features before them, to a cache."""
        x, _ = self._joined(embeddings, features)
        cache.update_and_fetch(*self.self_attn.keys_values(x, cache.offset))

    def __call__(
        self,
        embeddings: mx.array,
        features: mx.array,
        cache: KVCache,
        position: int,
        mask: mx.array | None = None,
    ) -> mx.array:
        """Add rows that are all at one position to a cache, and attend: [1, S, H] -> [1, S, H].

        The cache's first row is of a token with no feature before it; nothing attends to it.
        """
        x, residual = self._joined(embeddings, features)
        attention = self.self_attn
        held: Any = cache.update_and_fetch(*attention.keys_values(x, position, level=True))
        seen = held[0][:, :, 1:], held[1][:, :, 1:]
        x = residual + attention(x, seen, position, mask, level=True)
        return x + self.mlp(self.post_attention_layernorm(x))

    def _joined(self, embeddings: mx.array, features: mx.array) -> tuple[mx.array, mx.array]:
        """The attention's input [1, S, 2 H], and the residual [1, S, H]."""
        normed = self.hidden_norm(features)
        x = mx.concatenate([self.input_layernorm(embeddings), normed], axis=-1)
        return x, normed if self.normed_residual else features


class EagleModel(nn.Module):
    """All parameters of a head."""

    def __init__(
        self, config: EagleConfig, taps: int, target_hidden_size: int, own: frozenset[str] = OWN
    ):
        """`taps` layers are read; `own` are those of OWN that the checkpoint brings."""
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        vocab = config.draft_vocab_size
        eps = config.rms_norm_eps
        if "embed_tokens" in own:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        if "lm_head" in own:
            self.lm_head = nn.Linear(hidden, vocab or config.vocab_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(taps * target_hidden_size, eps=eps)
        if config.fc_norm:
            self.fc_norm = [nn.RMSNorm(target_hidden_size, eps=eps) for _ in range(taps)]
        if vocab not in (None, config.vocab_size):
            self.d2t = mx.zeros((vocab,), dtype=mx.int32)
        self.fc = nn.Linear(taps * target_hidden_size, hidden, bias=False)
        self.midlayer = Layer(config)
        self.norm = nn.RMSNorm(hidden, eps=eps)

    def features(self, taps: mx.array) -> mx.array:
        """Taps [1, S, K * Ht], the layers in the config's order -> features [1, S, H]."""
        if self.config.norm_before_fc:
            taps = self.input_norm(taps)
        if self.config.fc_norm:
            parts = mx.split(taps, len(self.fc_norm), axis=-1)
            pairs = zip(self.fc_norm, parts, strict=True)
            taps = mx.concatenate([norm(part) for norm, part in pairs], axis=-1)
        return self.fc(taps)

    def ids(self, tokens: mx.array) -> mx.array:
        """The target's ids of tokens of the head's vocabulary, any shape."""
        d2t = self.get("d2t")
        return tokens if d2t is None else tokens + d2t[tokens]

    def spread(self, logits: mx.array) -> mx.array:
        """Logits [..., Vd] in the target's vocabulary [..., V]; -inf for tokens the head lacks."""
        d2t = self.get("d2t")
        return logits if d2t is None else spread(logits, target_ids(d2t), self.config.vocab_size)


Rows = Callable[[mx.array], mx.array]


class BoundHead:
    """An EAGLE-3 head with its target's embedding and head; computes in its weights' dtype."""

    def __init__(
        self, model: EagleModel, embed: Rows, head: Rows, head_type: mx.Dtype | None = None
    ):
        """`embed` and `head` are the target's, `head_type` is what its head takes (None: any)."""
        self.model = model
        self.config: EagleConfig = model.config
        self._embed = embed
        self._head = head
        self._head_type = head_type

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
