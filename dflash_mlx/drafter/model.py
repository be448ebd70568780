"""The drafter's network: a small Qwen3-style decoder whose layers also read the target's taps.

DFlash paper (arXiv 2602.06036), section 3: the target's hidden states become one context vector a
position, and every layer projects it to keys and values ("KV injection"). The block's own keys and
values are never kept. Does not know the target, the embedding, the head or any cache; blocks of one
batch may stand at different positions, which training uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.cache import KVCache

from .config import DFlash2, DraftConfig
from .convolution import DynamicConv, convolve
from .rope import make_rope
from .selector import CandidateSelector
from .shared_rows import SharedRows

KeysValues = tuple[mx.array, mx.array]


@dataclass(frozen=True, slots=True)
class CachedRows:
    """One layer's context rows of one sequence in a cache, from row `first` on."""

    cache: KVCache
    first: int = 0

    def joined(self, keys: mx.array, values: mx.array) -> KeysValues:
        """They and a block's own [1, nKV, T, d] behind them: views [1, nKV, S + T, d].

        The block's rows stand in the cache's free room, so nothing else is copied; they are not
        kept, the next that are written take their place.
        """
        count = keys.shape[2]
        held: Any = self.cache.update_and_fetch(keys, values)
        self.cache.trim(count)
        return held[0][:, :, self.first :], held[1][:, :, self.first :]


# Of one layer: rows of all blocks [B, nKV, S, d], of the only block, of each block, or of each
# sequence that several blocks belong to.
Context = KeysValues | CachedRows | list[CachedRows] | SharedRows
Mask = mx.array | None | list[mx.array | None]
# What a drafter shares with its target unless it brings it: the embedding, its mask row, the head.
OWN = frozenset({"embed_tokens", "mask_embedding", "lm_head"})


class Attention(nn.Module):
    """Queries from the block; keys and values from the context and the block."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        hidden, dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.heads, self.kv_heads, self.dim = config.num_heads, config.num_kv_heads, dim
        self.q_proj = nn.Linear(hidden, self.heads * dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=bias)
        self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.rope = make_rope(config)

    def __call__(
        self, x: mx.array, context: Context, offset: int | mx.array, mask: Mask
    ) -> mx.array:
        """x [B, T, H] after the layer's norm, and context rows -> [B, T, H].

        Contexts of several sequences come as a list, with a list of masks: one for each block.
        """
        batch, length, _ = x.shape
        # Queries and keys share one norm and one rotation: fewer small operations.
        heads = mx.concatenate([self.q_proj(x), self.k_proj(x)], axis=-1)
        weight = mx.concatenate(
            [tiled(self.q_norm.weight, self.heads), tiled(self.k_norm.weight, self.kv_heads)]
        )
        heads = normed_heads(heads, weight, self.q_norm.eps)
        queries, keys = mx.split(self.rope(heads, offset=offset), [self.heads], axis=1)
        values = self.v_proj(x).reshape(batch, length, self.kv_heads, self.dim)
        values = values.transpose(0, 2, 1, 3)
        if isinstance(context, list):
            assert isinstance(mask, list)
            blocks = (mx.split(part, batch) for part in (queries, keys, values))
            each = zip(*blocks, context, mask, strict=True)
            mixed = mx.concatenate([self._attend(*block) for block in each])
        else:
            assert not isinstance(mask, list)
            mixed = self._attend(queries, keys, values, context, mask)
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(batch, length, -1))

    def _attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        context: KeysValues | CachedRows | SharedRows,
        mask: mx.array | None,
    ) -> mx.array:
        if isinstance(context, SharedRows):
            assert mask is not None
            return context.mix(queries, keys, values, self.dim**-0.5, mask)
        if isinstance(context, CachedRows):
            keys, values = context.joined(keys, values)
        else:
            keys = mx.concatenate([context[0], keys], axis=2)
            values = mx.concatenate([context[1], values], axis=2)
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.dim**-0.5, mask=mask
        )


def tiled(weight: mx.array, heads: int) -> mx.array:
    """A norm's weight [d] for each of several heads: [heads, d]."""
    return mx.broadcast_to(weight, (heads, weight.shape[0]))


def normed_heads(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x [B, L, heads * d], each head RMS-normed and times its row of weight [heads, d].

    Returns [B, heads, L, d].
    """
    batch, length, _ = x.shape
    heads = x.reshape(batch, length, *weight.shape)
    return (mx.fast.rms_norm(heads, None, eps) * weight).transpose(0, 2, 1, 3)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] -> [B, T, H]."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class DraftLayer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual around it."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, x: mx.array, context: Context, offset: int | mx.array, mask: Mask
    ) -> mx.array:
        """[B, T, H] -> [B, T, H]."""
        x = x + self.self_attn(self.input_layernorm(x), context, offset, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class ConvolvedLayer(DraftLayer):
    """A DFlash 2 layer: a convolution before and after each sublayer; residuals go around both."""

    def __init__(self, config: DraftConfig, extra: DFlash2):
        super().__init__(config)
        self.attention_conv = DynamicConv(extra, config.hidden_size)
        self.mlp_conv = DynamicConv(extra, config.hidden_size)

    def __call__(
        self, x: mx.array, context: Context, offset: int | mx.array, mask: Mask
    ) -> mx.array:
        """[B, T, H] -> [B, T, H]; context rows are not convolved."""
        normed = self.input_layernorm(x)
        before, after = self.attention_conv(normed)
        mixed = self.self_attn(convolve(normed, before), context, offset, mask)
        x = x + convolve(mixed, after)
        normed = self.post_attention_layernorm(x)
        before, after = self.mlp_conv(normed)
        return x + convolve(self.mlp(convolve(normed, before)), after)


class DraftModel(nn.Module):
    """The trainable part of a drafter; parameter names are those of Z Lab's checkpoints."""

    def __init__(
        self, config: DraftConfig, target_hidden_size: int, own: frozenset[str] = frozenset()
    ):
        """`own` are those of OWN that the checkpoint brings instead of sharing the target's."""
        super().__init__()
        self.config = config
        hidden, vocab = config.hidden_size, config.draft_vocab_size
        if "embed_tokens" in own:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        if "mask_embedding" in own:
            self.mask_embedding = mx.zeros((hidden,))
        if "lm_head" in own or vocab:
            self.lm_head = nn.Linear(hidden, vocab or config.vocab_size, bias=False)
        if vocab:
            self.d2t = mx.zeros((vocab,), dtype=mx.int32)
        taps = len(config.target_layer_ids)
        self.fc = nn.Linear(taps * target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        count, extra = config.num_layers, config.dflash2
        if extra is None:
            self.layers = [DraftLayer(config) for _ in range(count)]
            return
        self.layers = [ConvolvedLayer(config, extra) for _ in range(count)]
        self.candidate_selector = CandidateSelector(extra, config.vocab_size, config.hidden_size)

    @property
    def selector(self) -> CandidateSelector | None:
        """What picks among each position's likeliest tokens; None for DFlash v1."""
        return self.get("candidate_selector")

    def context_rows(self, taps: mx.array, offset: int | mx.array) -> KeysValues:
        """Keys and values of the positions from `offset` on, all layers' heads one after another.

        taps: [B, S, K * Ht], the tapped target layers' outputs in the config's order. The context
        vectors are projected first, normalised second, and skip the layers' input norms.
        Returns two arrays [B, N * nKV, S, d].
        """
        keys, values = self.project_context(taps)
        return self.rotate_context(keys, offset), values

    def rotate_context(self, keys: mx.array, offset: int | mx.array) -> mx.array:
        """Projected keys [B, N * nKV, S, d] at their positions, from `offset` on."""
        return self.layers[0].self_attn.rope(keys, offset=offset)

    def project_context(self, taps: mx.array) -> KeysValues:
        """`context_rows` before positions are rotated in."""
        vectors = self.hidden_norm(self.fc(taps))
        parts = [layer.self_attn for layer in self.layers]
        weight = mx.concatenate([tiled(part.k_norm.weight, part.kv_heads) for part in parts])
        keys = mx.concatenate([part.k_proj(vectors) for part in parts], axis=-1)
        keys = normed_heads(keys, weight, self.config.rms_norm_eps)
        values = mx.concatenate([part.v_proj(vectors) for part in parts], axis=-1)
        values = values.reshape(*values.shape[:2], *weight.shape).transpose(0, 2, 1, 3)
        return keys, values

    def by_layer(self, rows: KeysValues) -> list[KeysValues]:
        """Rows of all layers [B, N * nKV, S, d] -> each layer's own [B, nKV, S, d]."""
        n = self.config.num_layers
        return list(zip(mx.split(rows[0], n, axis=1), mx.split(rows[1], n, axis=1), strict=True))

    def context(self, taps: mx.array, offset: int | mx.array) -> list[KeysValues]:
        """`context_rows`, layer by layer."""
        return self.by_layer(self.context_rows(taps, offset))

    def __call__(
        self,
        x: mx.array,
        context: Sequence[Context],
        offset: int | mx.array,
        masks: Sequence[Mask],
    ) -> mx.array:
        """Block embeddings x [B, T, H] that start at `offset`, or [B] offsets -> hidden states.

        `context[i]` and `masks[i]` (broadcastable to [B, heads, T, S + T], None: see all) belong
        to layer i.
        """
        for layer, keys_values, mask in zip(self.layers, context, masks, strict=True):
            x = layer(x, keys_values, offset, mask)
        return self.norm(x)


def block_mask(config: DraftConfig, layer: int, queries: mx.array, keys: mx.array) -> mx.array:
    """Which block positions see which, by absolute position (paper, section 3).

    queries [..., T, 1] and keys [..., 1, T] -> bool [..., T, T].
    """
    distance = queries - keys
    seen = distance >= 0 if config.causal(layer) else distance == distance
    if config.sliding[layer]:
        assert config.window is not None
        seen = seen & (mx.abs(distance) < config.window)
    return seen


def context_mask(
    config: DraftConfig, layer: int, queries: mx.array, keys: mx.array, anchor: mx.array | int
) -> mx.array:
    """Which context rows block positions see: those before the anchor, in a sliding layer's window.

    queries [..., T, 1] and keys [..., 1, S] -> bool [..., T, S].
    """
    seen = (keys < anchor) & (queries >= anchor)
    if config.sliding[layer]:
        assert config.window is not None
        seen = seen & (queries - keys < config.window)
    return seen
