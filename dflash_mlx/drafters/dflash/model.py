"""The drafter's network: a small Qwen3-style decoder whose layers also read the target's taps.

DFlash paper (arXiv 2602.06036), section 3: the target's hidden states become one context vector per
position, and every layer projects it to keys and values ("KV injection"). The block's own keys and
values are never kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache

from dflash_mlx.cpu.modules import softmax
from dflash_mlx.drafters.network import MLP, DraftNetwork, GeluMLP, Projections, target_ids
from dflash_mlx.kernels import selector_walk
from dflash_mlx.kernels.dispatch import on_cpu
from dflash_mlx.speculation.drafts import Lattice

from .config import GELU, DFlash2, DraftConfig
from .markov import MarkovHead

# The grouped dynamic causal convolution of DFlash 2, around each attention and MLP sublayer.


class DynamicConv(nn.Module):
    """The kernels before and after a sublayer: base kernels plus a projection of its input."""

    def __init__(self, config: DFlash2, hidden_size: int):
        super().__init__()
        self._taps = config.conv_kernel_size
        self._groups = hidden_size // config.conv_group_size
        # Identity at initialisation: tap 0 is 1, all others are 0.
        self.base_kernel = mx.zeros((2, self._taps, hidden_size))
        self.base_kernel[:, 0] = 1
        self.kernel_projection = nn.Linear(hidden_size, 2 * self._taps * self._groups, bias=False)
        self.kernel_projection.weight = mx.zeros_like(self.kernel_projection.weight)

    def __call__(self, normed: mx.array) -> tuple[mx.array, mx.array]:
        """The sublayer's normed input [B, T, H] -> kernels before and after it [B, T, taps, H]."""
        batch, length, hidden = normed.shape
        change = self.kernel_projection(normed)
        change = change.reshape(batch, length, 2, self._taps, self._groups, 1)
        base = self.base_kernel.reshape(2, self._taps, self._groups, -1)
        kernels = (base + change).reshape(batch, length, 2, self._taps, hidden)
        return kernels[:, :, 0], kernels[:, :, 1]


def convolve(x: mx.array, kernel: mx.array) -> mx.array:
    """x [B, T, H], kernel [B, T, taps, H] -> [B, T, H]. Tap r reads the row r before, or zeros."""
    length = x.shape[1]
    out = x * kernel[:, :, 0]
    for back in range(1, kernel.shape[2]):
        earlier = mx.pad(x, [(0, 0), (back, 0), (0, 0)])[:, :length]
        out = out + earlier * kernel[:, :, back]
    return out


# The candidate selector of DFlash 2


class CandidateSelector(nn.Module):
    """S_t(a, b) = U_t(b) + sum_r A[a]_r (W h_t)_r B[b]_r over the top-k candidates b of position t.

    U: the logits; A and B: the predecessor and successor codebooks [V, r]; W: the hidden
    projection. In checkpoints the codebooks have no `.weight` suffix.
    """

    def __init__(self, config: DFlash2, vocab_size: int, hidden_size: int):
        super().__init__()
        self._top_k = config.selector_top_k
        shape = (vocab_size, config.selector_rank)
        self.predecessor_codebook = 0.02 * mx.random.normal(shape)
        self.successor_codebook = 0.02 * mx.random.normal(shape)
        self.hidden_projection = nn.Linear(hidden_size, config.selector_rank, bias=False)

    def __call__(self, logits: mx.array, hidden: mx.array, anchor: int) -> Lattice:
        """Score the positions after the anchor.

        logits: [γ, V], hidden: [γ, H] after the final norm, anchor: the token id before position 1.
        """
        k = self._top_k
        candidates = mx.sort(mx.argpartition(-logits, k - 1, axis=-1)[:, :k], axis=-1)
        made_of = (
            mx.take_along_axis(logits, candidates, axis=-1).astype(mx.float32),
            candidates,
            anchor,
            self.hidden_projection(hidden),
            self.predecessor_codebook,
            self.successor_codebook,
        )
        scores = selector_walk.scores(*made_of)
        return Lattice(candidates, scores, made_of)


# Attention of many blocks to one sequence's context rows, which are held once (training).


@dataclass(frozen=True, slots=True)
class SharedRows:
    """One layer's context rows of n sequences, [n, nKV, S, d] each; m = `blocks` per sequence."""

    keys: mx.array
    values: mx.array
    blocks: int

    def mix(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any
    ) -> mx.array:
        """Queries [n * m, heads, T, d], keys and values [n * m, nKV, T, d] -> [n * m, heads, T, d].

        mask: bool [n * m, 1, T, S + T]. The backward pass recomputes the scores: keeping them would
        take more memory than everything else.
        """

        def attend(*arrays: mx.array) -> mx.array:
            return attention(*arrays, blocks=self.blocks, scale=scale, mask=mask)

        return mx.checkpoint(attend)(self.keys, self.values, queries, keys, values)


def attention(
    context_keys: mx.array,
    context_values: mx.array,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    blocks: int,
    scale: float,
    mask: mx.array,
) -> mx.array:
    """Compute `SharedRows.mix`; one KV head of the context serves a group of query heads."""
    n, kv_heads, rows, dim = context_keys.shape
    _, heads, length, _ = queries.shape
    group = heads // kv_heads
    own = (n, blocks, kv_heads, length, dim)
    shape = (n, kv_heads, blocks, group, length)
    queries = queries.reshape(n, blocks, kv_heads, group, length, dim).swapaxes(1, 2) * scale
    keys = keys.reshape(own).swapaxes(1, 2)
    values = values.reshape(own).swapaxes(1, 2)
    # [n, nKV, m * group * T, d] against all rows, [n, nKV, m, group * T, d] against the block's.
    every = queries.reshape(n, kv_heads, -1, dim) @ context_keys.swapaxes(-1, -2)
    inside = queries.reshape(*shape[:3], -1, dim) @ keys.swapaxes(-1, -2)
    scores = mx.concatenate([every.reshape(*shape, rows), inside.reshape(*shape, length)], axis=-1)
    seen = mask.reshape(n, 1, blocks, 1, length, rows + length)
    lowest = mx.array(mx.finfo(scores.dtype).min, scores.dtype)
    scores = mx.where(seen, scores, lowest)
    fast = on_cpu() and scores.dtype == mx.float32
    shares = softmax(scores) if fast else mx.softmax(scores, axis=-1, precise=True)
    every, inside = mx.split(shares, [rows], axis=-1)
    mixed = (every.reshape(n, kv_heads, -1, rows) @ context_values).reshape(*shape, dim)
    mixed = mixed + (inside.reshape(*shape[:3], -1, length) @ values).reshape(*shape, dim)
    return mixed.swapaxes(1, 2).reshape(n * blocks, heads, length, dim)


KeysValues = tuple[mx.array, mx.array]


@dataclass(frozen=True, slots=True)
class CachedRows:
    cache: KVCache
    first: int = 0

    def joined(self, keys: mx.array, values: mx.array) -> KeysValues:
        """The context rows, then a block's own rows [1, nKV, T, d]: views [1, nKV, S + T, d].

        The block's rows are written into the cache's free room, so nothing else is copied. They are
        not kept: the next rows overwrite them.
        """
        count = keys.shape[2]
        held: Any = self.cache.update_and_fetch(keys, values)
        self.cache.trim(count)
        return held[0][:, :, self.first :], held[1][:, :, self.first :]

    def mix(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any
    ) -> mx.array:
        """Queries [1, heads, T, d], keys and values [1, nKV, T, d] of a block -> [1, heads, T, d].

        mask: broadcastable to [1, heads, T, S + T], or "causal"; None: all is seen.
        """
        rows = self.joined(keys, values)
        return mx.fast.scaled_dot_product_attention(queries, *rows, scale=scale, mask=mask)


# One layer's context: cached rows of the only block or of each block, or rows that the blocks of a
# sequence share (training).
Context = CachedRows | list[CachedRows] | SharedRows
LayerMask = mx.array | str | None  # of one layer
Mask = LayerMask | list[LayerMask]  # or one for each block


class Attention(Projections):
    """Queries from the block; keys and values from the context and the block."""

    def __init__(self, config: DraftConfig):
        super().__init__(config, config.hidden_size, interleaved=config.interleaved_rope)

    def __call__(
        self, x: mx.array, context: Context, offset: int | mx.array, mask: Mask
    ) -> mx.array:
        """x [B, T, H] after the layer's norm, and context rows -> [B, T, H].

        Contexts of several sequences come as a list, with a list of masks: one for each block.
        """
        queries = self.split(self.q_proj(x), "q_norm")
        keys, values = self.project(x)
        queries = self.rope(queries, offset=offset)
        keys = self.rope(keys, offset=offset)
        if isinstance(context, list):
            assert isinstance(mask, list)
            blocks = (mx.split(part, len(x)) for part in (queries, keys, values))
            each = zip(context, *blocks, mask, strict=True)
            parts = [held.mix(*block, self.scale, seen) for held, *block, seen in each]
            return self.joined(mx.concatenate(parts))
        return self.joined(context.mix(queries, keys, values, self.scale, mask))

    def project(self, x: mx.array) -> KeysValues:
        """Keys, before positions are rotated in, and values of x [B, L, H]: [B, nKV, L, d]."""
        return self.split(self.k_proj(x), "k_norm"), self.split(self.v_proj(x))


class DraftLayer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual around it.

    In DFlash 2 a convolution comes before and after each; residuals go around both.
    """

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = (GeluMLP if config.hidden_act == GELU else MLP)(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.dflash2:
            self.attention_conv = DynamicConv(config.dflash2, config.hidden_size)
            self.mlp_conv = DynamicConv(config.dflash2, config.hidden_size)

    def __call__(
        self, x: mx.array, context: Context, offset: int | mx.array, mask: Mask
    ) -> mx.array:
        """[B, T, H] -> [B, T, H]; context rows are not convolved."""

        def attend(normed: mx.array) -> mx.array:
            return self.self_attn(normed, context, offset, mask)

        x = x + self._convolved("attention_conv", attend, self.input_layernorm(x))
        return x + self._convolved("mlp_conv", self.mlp, self.post_attention_layernorm(x))

    def _convolved(
        self, name: str, sublayer: Callable[[mx.array], mx.array], normed: mx.array
    ) -> mx.array:
        if name not in self:
            return sublayer(normed)
        before, after = self[name](normed)
        return convolve(sublayer(convolve(normed, before)), after)


class Gemma4Attention(Attention):
    """Scores without a factor, and values with a norm that has no weights."""

    def __init__(self, config: DraftConfig):
        super().__init__(config)
        self.scale = 1.0
        self.eps = config.rms_norm_eps
        if config.shared_values:
            del self.v_proj

    def project(self, x: mx.array) -> KeysValues:
        keys = self.k_proj(x)
        values = self.split(self.v_proj(x) if "v_proj" in self else keys)
        return self.split(keys, "k_norm"), mx.fast.rms_norm(values, None, self.eps)


class Gemma4Layer(nn.Module):
    def __init__(self, config: DraftConfig):
        super().__init__()
        hidden = config.hidden_size
        eps = config.rms_norm_eps
        self.self_attn = Gemma4Attention(config)
        self.mlp = (GeluMLP if config.hidden_act == GELU else MLP)(config)
        self.input_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.pre_feedforward_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.post_feedforward_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.layer_scalar = mx.ones((1,))

    def __call__(
        self, x: mx.array, context: Context, offset: int | mx.array, mask: Mask
    ) -> mx.array:
        mixed = self.self_attn(self.input_layernorm(x), context, offset, mask)
        x = x + self.post_attention_layernorm(mixed)
        mixed = self.mlp(self.pre_feedforward_layernorm(x))
        return (x + self.post_feedforward_layernorm(mixed)) * self.layer_scalar


class DraftModel(DraftNetwork):
    """The trainable part of a drafter; parameter names are those of Z Lab's checkpoints."""

    config: DraftConfig

    def __init__(
        self, config: DraftConfig, target_hidden_size: int, own: frozenset[str] = frozenset()
    ):
        """A drafter with a vocabulary of its own has a head of its own."""
        super().__init__(config, own | {"lm_head"} if config.draft_vocab_size else own)
        taps = len(config.target_layer_ids)
        self.fc = nn.Linear(taps * target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        layer = Gemma4Layer if config.gemma4 else DraftLayer
        self.layers = [layer(config) for _ in range(config.num_layers)]
        if config.dflash2:
            self.candidate_selector = CandidateSelector(
                config.dflash2, config.vocab_size, config.hidden_size
            )
        if (heads := config.dspark) and heads.markov_rank:
            self.markov_head = MarkovHead(heads, config)

    @property
    def selector(self) -> CandidateSelector | None:
        return self.get("candidate_selector")

    def project_context(self, taps: mx.array) -> list[KeysValues]:
        """Each layer's keys and values [B, nKV, S, d], before positions are rotated in.

        taps: [B, S, K * Ht], the tapped target layers' outputs in the config's order. The context
        vectors are projected first, normalised second, and skip the layers' input norms.
        """
        vectors = self.hidden_norm(self.fc(taps))
        return [layer.self_attn.project(vectors) for layer in self.layers]

    def rotate_context(self, keys: mx.array, offset: int | mx.array) -> mx.array:
        """Projected keys [B, nKV, S, d] at their positions, from `offset` on."""
        return self.layers[0].self_attn.rope(keys, offset=offset)

    def context(self, taps: mx.array, offset: int | mx.array) -> list[KeysValues]:
        """Each layer's keys and values [B, nKV, S, d] of the positions from `offset` on."""
        rows = self.project_context(taps)
        return [(self.rotate_context(keys, offset), values) for keys, values in rows]

    def __call__(
        self,
        x: mx.array,
        context: Sequence[Context],
        offset: int | mx.array,
        masks: Sequence[Mask],
    ) -> mx.array:
        """Block embeddings x [B, T, H] that start at `offset`, or [B] offsets -> hidden states.

        `context[i]` and `masks[i]` belong to layer i.
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


def draft_ids(d2t: mx.array, vocab_size: int) -> mx.array:
    """The drafter's ids [V] of the target's tokens; -1 for tokens that it lacks."""
    places = mx.arange(d2t.size, dtype=mx.int32)
    return mx.put_along_axis(mx.full(vocab_size, -1, mx.int32), target_ids(d2t), places, axis=0)
