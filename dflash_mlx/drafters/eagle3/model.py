"""The network of an EAGLE-3 head: one decoder layer over a token and the features before it.

arXiv 2503.01840, section 3. The target's hidden states of three layers become one feature per
position (`fc`). The layer's row for token t is its embedding beside the feature of position t - 1;
after the committed tokens, the head's own last hidden state takes the feature's place. Parameter
names are those of the authors' checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache

from dflash_mlx.drafters.network import MLP, DraftNetwork, Projections

from .config import EagleConfig


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


class Attention(Projections):
    """Attention over rows [embedding, feature], which are twice as wide as its output."""

    def __call__(self, x: mx.array, positions: mx.array, segments: Sequence[Segment]) -> mx.array:
        """Rows x [1, R, 2 H] of several sequences, at positions [R] -> [1, R, H].

        Each row attends to its own sequence, whose cache gets its keys and values.
        """
        ends = list(accumulate(segment.count for segment in segments))[:-1]
        queries = self._rotated(self.split(self.q_proj(x), "q_norm"), positions)
        keys = self._rotated(self.split(self.k_proj(x), "k_norm"), positions)
        values = self.split(self.v_proj(x))
        parts = (mx.split(rows, ends, axis=2) for rows in (queries, keys, values))
        each = zip(segments, *parts, strict=True)
        mixed = [segment.attend(*rows, self.scale) for segment, *rows in each]
        return self.joined(mx.concatenate(mixed, axis=2))

    def _rotated(self, x: mx.array, positions: mx.array) -> mx.array:
        """[1, heads, R, d] at positions [R]. Every row is an element of a batch."""
        return self.rope(x.transpose(2, 1, 0, 3), offset=positions).transpose(2, 1, 0, 3)


class Layer(nn.Module):
    def __init__(self, config: EagleConfig):
        super().__init__()
        self.normed_residual = config.norm_before_residual
        hidden = config.hidden_size
        eps = config.rms_norm_eps
        self.self_attn = Attention(config, 2 * hidden, normed=config.qk_norm)
        self.mlp = MLP(config)
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
        normed = self.hidden_norm(features)
        x = mx.concatenate([self.input_layernorm(embeddings), normed], axis=-1)
        residual = normed if self.normed_residual else features
        x = residual + self.self_attn(x, positions, segments)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleModel(DraftNetwork):
    config: EagleConfig

    def __init__(
        self, config: EagleConfig, taps: int, target_hidden_size: int, own: frozenset[str]
    ):
        """`taps` layers are read."""
        super().__init__(config, own - {"mask_embedding"})
        hidden = config.hidden_size
        eps = config.rms_norm_eps
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(taps * target_hidden_size, eps=eps)
        if config.fc_norm:
            self.fc_norm = [nn.RMSNorm(target_hidden_size, eps=eps) for _ in range(taps)]
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
