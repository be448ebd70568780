"""The network of an EAGLE-3 head: one decoder layer over a token and the features before it.

arXiv 2503.01840, section 3. The target's hidden states of three layers become one feature per
position (`fc`). The layer's row for token t is its embedding beside the feature of position t - 1;
after the committed tokens, the head's own last hidden state takes the feature's place. Parameter
names are those of the authors' checkpoints.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache

from dflash_mlx.drafters.dflash.model import MLP, spread, target_ids
from dflash_mlx.drafters.rotary import make_rope
from dflash_mlx.models.precision import cast, float_type

from .config import EagleConfig

# The parts that a head shares with its target, unless its checkpoint has them.
OWN = frozenset({"embed_tokens", "lm_head"})


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one sequence in a pass: `count` of them, and its cache.

    The cache's first row is of a token with no feature before it; nothing attends to it. mask
    [count, T]: which of the T others, their own included, the rows see; None for all.
    """

    cache: KVCache
    count: int
    mask: mx.array | None = None

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
        """Rows [1, heads, count, d], whose keys and values are added to the cache, attend."""
        held: Any = self.cache.update_and_fetch(keys, values)
        seen = held[0][:, :, 1:], held[1][:, :, 1:]
        return mx.fast.scaled_dot_product_attention(queries, *seen, scale=scale, mask=self.mask)


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

    def __call__(self, x: mx.array, positions: mx.array, segments: Sequence[Segment]) -> mx.array:
        """Rows x [1, R, 2 H] of several sequences, at positions [R] -> [1, R, H].

        Each row attends to its own sequence, whose cache gets its keys and values.
        """
        ends = list(accumulate(segment.count for segment in segments))[:-1]
        queries = self._rotated(self.q_proj(x), "q_norm", positions)
        keys = self._rotated(self.k_proj(x), "k_norm", positions)
        values = self.v_proj(x).reshape(1, -1, self.kv_heads, self.dim).transpose(0, 2, 1, 3)
        parts = (mx.split(rows, ends, axis=2) for rows in (queries, keys, values))
        each = zip(segments, *parts, strict=True)
        mixed = [segment.attend(*rows, self.dim**-0.5) for segment, *rows in each]
        joined = mx.concatenate(mixed, axis=2).transpose(0, 2, 1, 3)
        return self.o_proj(joined.reshape(1, x.shape[1], -1))

    def _rotated(self, x: mx.array, norm: str, positions: mx.array) -> mx.array:
        """[1, R, heads * d] -> [1, heads, R, d]. Every row is an element of a batch."""
        x = x.reshape(1, x.shape[1], -1, self.dim)
        if norm in self:
            x = self[norm](x)
        return self.rope(x.transpose(1, 2, 0, 3), offset=positions).transpose(2, 1, 0, 3)


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

    def __call__(
        self,
        embeddings: mx.array,
        features: mx.array,
        positions: mx.array,
        segments: Sequence[Segment],
    ) -> mx.array:
        """Rows of tokens and of the features before them, both [1, R, H] -> [1, R, H]."""
        x, residual = self._joined(embeddings, features)
        x = residual + self.self_attn(x, positions, segments)
        return x + self.mlp(self.post_attention_layernorm(x))

    def _joined(self, embeddings: mx.array, features: mx.array) -> tuple[mx.array, mx.array]:
        """The attention's input [1, S, 2 H], and the residual [1, S, H]."""
        normed = self.hidden_norm(features)
        x = mx.concatenate([self.input_layernorm(embeddings), normed], axis=-1)
        return x, normed if self.normed_residual else features


class EagleModel(nn.Module):
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
        d2t = self.get("d2t")
        return tokens if d2t is None else tokens + d2t[tokens]

    def spread(self, logits: mx.array) -> mx.array:
        """Logits [..., Vd] in the target's vocabulary [..., V]; -inf for tokens the head lacks."""
        d2t = self.get("d2t")
        return logits if d2t is None else spread(logits, target_ids(d2t), self.config.vocab_size)


def mask_of(count: int, cache: KVCache) -> mx.array | None:
    """What `count` new rows see of the rows after the first one: all before them, and themselves.

    bool [count, offset + count - 1], or None for all. Row 0 has no one to see. It sees all, since
    a row that sees nothing has no softmax; what it gives is never used.
    """
    if count == 1:
        return None
    places = mx.arange(cache.offset + count)
    rows = places[cache.offset :, None]
    return (places[1:] <= rows) | (rows == 0)


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

    def features(self, taps: mx.array) -> mx.array:
        return self.model.features(self.enter(taps))

    def __call__(
        self, tokens: mx.array, before: mx.array, caches: Sequence[KVCache], counts: Sequence[int]
    ) -> mx.array:
        """See `Head`: what takes a feature's place, [1, R, H]."""
        pairs = list(zip(caches, counts, strict=True))
        positions = [mx.arange(cache.offset, cache.offset + count) for cache, count in pairs]
        segments = [Segment(cache, count, mask_of(count, cache)) for cache, count in pairs]
        return self.level(tokens, before, mx.concatenate(positions), segments)

    def level(
        self, tokens: mx.array, before: mx.array, positions: mx.array, segments: Sequence[Segment]
    ) -> mx.array:
        """As `__call__`, with rows at any positions that see what the segments say."""
        out = self.model.midlayer(self.embed(tokens), before, positions, segments)
        return self.model.norm(out) if self.config.norm_output else out

    def embed(self, ids: mx.array) -> mx.array:
        """The target's token ids [S] -> embeddings [1, S, H]."""
        own = self.model.get("embed_tokens")
        return self.enter(self._embed(ids) if own is None else own(ids))[None]

    def logits(self, hidden: mx.array) -> mx.array:
        if not self.config.norm_output:
            hidden = self.model.norm(hidden)
        own = self.model.get("lm_head")
        if own is None:
            return self._head(cast(hidden, self._head_type))[0]
        return own(hidden)[0]
