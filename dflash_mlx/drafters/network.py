"""What the networks of several kinds of drafters have in common.

Parameter names are those of Z Lab's checkpoints, which the authors of EAGLE-3 use, too.
"""

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu

from .entries import LayerConfig
from .rotary import make_rope

# The parts that a drafter shares with its target, unless its checkpoint has them.
OWN = frozenset({"embed_tokens", "mask_embedding", "lm_head"})


class DraftNetwork(nn.Module):
    """A drafter's own parts, and its own vocabulary, which may be a part of its target's."""

    def __init__(self, config: LayerConfig, own: frozenset[str]):
        """`own` are those of OWN that the checkpoint brings instead of sharing the target's."""
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        if "embed_tokens" in own:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        if "mask_embedding" in own:
            self.mask_embedding = mx.zeros((hidden,))
        if "lm_head" in own:
            self.lm_head = nn.Linear(hidden, config.drafted, bias=False)
        if config.draft_vocab_size:
            self.d2t = mx.zeros((config.draft_vocab_size,), dtype=mx.int32)

    def ids(self, tokens: mx.array) -> mx.array:
        d2t = self.get("d2t")
        return tokens if d2t is None else tokens + d2t[tokens]

    def spread(self, logits: mx.array) -> mx.array:
        """Logits [..., Vd] in the target's vocabulary [..., V]; -inf for tokens it lacks."""
        if (d2t := self.get("d2t")) is None:
            return logits
        everywhere = mx.full((*logits.shape[:-1], self.config.vocab_size), -mx.inf, logits.dtype)
        places = mx.broadcast_to(target_ids(d2t), logits.shape)
        return mx.put_along_axis(everywhere, places, logits, axis=-1)


def target_ids(d2t: mx.array) -> mx.array:
    """The target's ids [Vd] of the drafter's tokens."""
    return mx.arange(d2t.size) + d2t


class Projections(nn.Module):
    """The projections of an attention over rows of `inputs` numbers, and its rotary embedding."""

    def __init__(
        self,
        config: LayerConfig,
        inputs: int,
        *,
        normed: bool = True,
        interleaved: bool = False,
    ):
        """normed: each head of the queries and keys is normed."""
        super().__init__()
        dim = config.head_dim
        bias = config.attention_bias
        self.dim = dim
        self.scale = dim**-0.5
        self.q_proj = nn.Linear(inputs, config.num_heads * dim, bias=bias)
        self.k_proj = nn.Linear(inputs, config.num_kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(inputs, config.num_kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * dim, config.hidden_size, bias=bias)
        if normed:
            self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.rope = make_rope(config, interleaved=interleaved)

    def split(self, x: mx.array, norm: str = "") -> mx.array:
        """[B, L, heads * d] -> [B, heads, L, d], each head normed if there is such a norm."""
        heads = x.reshape(*x.shape[:2], -1, self.dim)
        return (self[norm](heads) if norm in self else heads).transpose(0, 2, 1, 3)

    def joined(self, mixed: mx.array) -> mx.array:
        """[B, heads, L, d] -> [B, L, H]."""
        return self.o_proj(mixed.transpose(0, 2, 1, 3).flatten(2))


class MLP(nn.Module):
    """SwiGLU. Its code is that of Llama's, which the CPU and fused weights stand in for."""

    def __init__(self, config: LayerConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class GeluMLP(MLP):
    """GEGLU, with the approximation by tanh."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.gelu_approx(self.gate_proj(x)) * self.up_proj(x))
