"""The drafter's network: a small Qwen3-style decoder whose layers also read the target's taps.

DFlash paper (arXiv 2602.06036), section 3: the target's hidden states become one context vector a
position, and every layer projects it to keys and values ("KV injection"). The block's own keys and
values are never kept. Does not know the target, the embedding, the head or any cache; blocks of one
batch may stand at different positions, which training uses.
"""

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.rope_utils import initialize_rope

from .config import DraftConfig

KeysValues = tuple[mx.array, mx.array]


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
        self.rope = initialize_rope(
            dim,
            base=config.rope_theta,
            traditional=False,
            scaling_config=config.rope_scaling,
            max_position_embeddings=config.max_position_embeddings,
        )

    def keys_values(self, x: mx.array, offset: int | mx.array) -> KeysValues:
        """Keys and values of x [B, L, H], whose first row stands at `offset`: [B, nKV, L, d]."""
        batch, length, _ = x.shape
        keys = self.k_norm(self.k_proj(x).reshape(batch, length, self.kv_heads, self.dim))
        values = self.v_proj(x).reshape(batch, length, self.kv_heads, self.dim)
        return self.rope(keys.transpose(0, 2, 1, 3), offset=offset), values.transpose(0, 2, 1, 3)

    def __call__(
        self, x: mx.array, context: KeysValues, offset: int | mx.array, mask: mx.array | None
    ) -> mx.array:
        """x [B, T, H] after the layer's norm, context rows [B, nKV, S, d] -> [B, T, H]."""
        batch, length, _ = x.shape
        queries = self.q_norm(self.q_proj(x).reshape(batch, length, self.heads, self.dim))
        queries = self.rope(queries.transpose(0, 2, 1, 3), offset=offset)
        keys, values = self.keys_values(x, offset)
        mixed = mx.fast.scaled_dot_product_attention(
            queries,
            mx.concatenate([context[0], keys], axis=2),
            mx.concatenate([context[1], values], axis=2),
            scale=self.dim**-0.5,
            mask=mask,
        )
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(batch, length, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] -> [B, T, H]."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class DraftLayer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual around it."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, x: mx.array, context: KeysValues, offset: int | mx.array, mask: mx.array | None
    ) -> mx.array:
        """[B, T, H] -> [B, T, H]."""
        x = x + self.self_attn(self.input_layernorm(x), context, offset, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DraftModel(nn.Module):
    """The trainable part of a drafter; parameter names are those of Z Lab's checkpoints."""

    def __init__(self, config: DraftConfig, target_hidden_size: int):
        super().__init__()
        self.config = config
        taps = len(config.target_layer_ids)
        self.fc = nn.Linear(taps * target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DraftLayer(config) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def context(self, taps: mx.array, offset: int | mx.array) -> list[KeysValues]:
        """Keys and values, for each layer, of the positions from `offset` on.

        taps: [B, S, K * Ht], the tapped target layers' outputs in the config's order. The context
        vectors are projected first, normalised second, and skip the layers' input norms.
        """
        vectors = self.hidden_norm(self.fc(taps))
        return [layer.self_attn.keys_values(vectors, offset) for layer in self.layers]

    def __call__(
        self,
        x: mx.array,
        context: list[KeysValues],
        offset: int | mx.array,
        masks: list[mx.array | None],
    ) -> mx.array:
        """Block embeddings x [B, T, H] that start at `offset` -> hidden states [B, T, H].

        `context[i]` and `masks[i]` (broadcastable to [B, heads, T, S + T], None: see all) belong
        to layer i.
        """
        for layer, keys_values, mask in zip(self.layers, context, masks, strict=True):
            x = layer(x, keys_values, offset, mask)
        return self.norm(x)


def block_mask(config: DraftConfig, layer: int, queries: mx.array, keys: mx.array) -> mx.array:
    """Which block slots see which, by absolute position (spec 1.5).

    queries [..., T, 1] and keys [..., 1, T] -> bool [..., T, T].
    """
    distance = queries - keys
    seen = distance >= 0 if config.causal(layer) else distance == distance
    if config.sliding[layer]:
        seen = seen & (mx.abs(distance) < config.window)
    return seen


def context_mask(
    config: DraftConfig, layer: int, queries: mx.array, keys: mx.array, anchor: mx.array | int
) -> mx.array:
    """Which context rows block slots see: those before the anchor, in a sliding layer's window.

    queries [..., T, 1] and keys [..., 1, S] -> bool [..., T, S].
    """
    seen = (keys < anchor) & (queries >= anchor)
    if config.sliding[layer]:
        seen = seen & (queries - keys < config.window)
    return seen
