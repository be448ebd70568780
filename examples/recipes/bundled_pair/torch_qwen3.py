"""A Qwen3 in PyTorch for training: no cache, names of tensors as in Hugging Face checkpoints."""

from dataclasses import dataclass
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model."""

    vocabulary: int = 1024
    width: int = 192
    inner: int = 576
    layers: int = 12
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 4096
    theta: float = 10000.0
    epsilon: float = 1e-6

    def config(self, end: int, pad: int) -> dict[str, Any]:
        """The config.json; `end` and `pad` are token ids."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "bos_token_id": None,
            "eos_token_id": end,
            "pad_token_id": pad,
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.theta,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
        }


class Attention(nn.Module):
    """Causal attention with norms of queries and keys."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.dim = shape.head_dim
        width, keys = shape.heads * self.dim, shape.kv_heads * self.dim
        self.q_proj = nn.Linear(shape.width, width, bias=False)
        self.k_proj = nn.Linear(shape.width, keys, bias=False)
        self.v_proj = nn.Linear(shape.width, keys, bias=False)
        self.o_proj = nn.Linear(width, shape.width, bias=False)
        self.q_norm = nn.RMSNorm(self.dim, shape.epsilon)
        self.k_norm = nn.RMSNorm(self.dim, shape.epsilon)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        heads = (*x.shape[:2], -1, self.dim)
        queries = self.q_norm(self.q_proj(x).view(heads).float()).transpose(1, 2)
        keys = self.k_norm(self.k_proj(x).view(heads).float()).transpose(1, 2)
        queries = rotate(queries, cosine, sine)
        keys = rotate(keys, cosine, sine)
        values = self.v_proj(x).view(heads).transpose(1, 2)
        groups = queries.shape[1] // keys.shape[1]
        keys = keys.repeat_interleave(groups, dim=1)
        values = values.repeat_interleave(groups, dim=1)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply rotary positions to x [B, heads, S, d]."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


class MLP(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = nn.RMSNorm(shape.width, shape.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, shape.epsilon)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, shape.epsilon)


class Qwen3(nn.Module):
    """The model; its output layer is the embedding."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.model = Body(shape)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        turns = shape.theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.outer(torch.arange(shape.context), turns).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The hidden states [B, S, H] of tokens [B, S]."""
        x = self.model.embed_tokens(tokens)
        length = tokens.shape[1]
        for layer in self.model.layers:
            x = layer(x, self.cosine[:length], self.sine[:length])
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [..., V] of hidden states."""
        return functional.linear(hidden, self.model.embed_tokens.weight)
