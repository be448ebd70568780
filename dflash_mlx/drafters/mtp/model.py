"""The network of an MTP head: one decoder layer over a token and the hidden state before it.

    x = fc([norm(embedding of token t), norm(hidden state of token t - 1)])
    hidden state of the next draft = norm(layer(x)); its logits are the target's head's

The first hidden state is the target's, after its final norm; the next ones are the head's own. The
layer is mlx-lm's: full attention with an output gate, and an MLP or experts. Heads that `dflash
train` makes, for targets of any family, have a layer of Qwen3. Parameter names are those of the
original checkpoints, without `mtp.`.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import qwen3, qwen3_5, qwen3_next
from mlx_lm.models.cache import KVCache

from dflash_mlx.files.formats import TRAINED_MTP

from .tensors import MLP, Tensors


@dataclass(frozen=True, slots=True)
class LayerKind:
    """mlx-lm's classes of a family's decoder layer and of its arguments.

    layer: called with the arguments and the layer's number. gated: whether the queries' projection
    also makes a gate for each of them.
    """

    arguments: Any
    layer: Any
    gated: bool = True


QWEN3_5 = LayerKind(qwen3_5.TextModelArgs, qwen3_5.DecoderLayer)
LAYERS = {
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": QWEN3_5,
    "qwen3_next": LayerKind(qwen3_next.ModelArgs, qwen3_next.Qwen3NextDecoderLayer),
    TRAINED_MTP: LayerKind(
        qwen3.ModelArgs, lambda arguments, number: qwen3.TransformerBlock(arguments), gated=False
    ),
}
MODES = {(32, 4): "mxfp4", (32, 8): "mxfp8", (16, 4): "nvfp4"}  # by group size and bits


def arguments_of(config: dict[str, Any], tensors: Tensors) -> Any:
    """mlx-lm's arguments for the layer that a config describes: the target's, or the head's own.

    The tensors tell the sizes. Raises KeyError for a tensor that is missing.
    """

    def rows(name: str) -> int:
        return tensors[f"{name}.weight"].shape[-2]

    kind = LAYERS[config["model_type"]]
    attention = "layers.0.self_attn."
    dim = tensors[f"{attention}q_norm.weight"].size
    sizes: dict[str, Any] = {
        "hidden_size": rows("fc"),
        "head_dim": dim,
        "num_attention_heads": rows(f"{attention}q_proj") // (2 * dim if kind.gated else dim),
        "num_key_value_heads": rows(f"{attention}k_proj") // dim,
        "num_experts": 0,
        "full_attention_interval": 1,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    if f"{MLP}gate.weight" in tensors:
        sizes |= {
            "num_experts": rows(f"{MLP}gate"),
            "moe_intermediate_size": rows(f"{MLP}switch_mlp.gate_proj"),
            "shared_expert_intermediate_size": rows(f"{MLP}shared_expert.gate_proj"),
        }
    else:
        sizes["intermediate_size"] = rows(f"{MLP}gate_proj")
    return kind.arguments.from_dict(
        {**deepcopy(config), **sizes}
    )  # qwen3_5 changes its rope's settings


class MTPHead(nn.Module):
    def __init__(self, arguments: Any, layer: Callable[[Any, int], nn.Module]):
        """`layer(arguments, 0)` makes its decoder layer."""
        super().__init__()
        self.config = arguments
        hidden = arguments.hidden_size
        eps = arguments.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(hidden, eps=eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = [layer(arguments, 0)]
        self.norm = nn.RMSNorm(hidden, eps=eps)

    def __call__(self, embeddings: mx.array, before: mx.array, cache: Any, mask: Any) -> mx.array:
        """Tokens [1, R, H] with the hidden states before them -> normed hidden states [1, R, H].

        Adds their rows to the cache, whose first row is of a token with nothing before it; no other
        row attends to it. `cache` and `mask` may be those of a packed pass.
        """
        parts = [self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(before)]
        x = self.fc(mx.concatenate(parts, axis=-1))
        return self.norm(self.layers[0](x, mask=mask, cache=cache))


def mask_of(count: int, cache: KVCache) -> mx.array:
    """The mask of `count` new rows, bool [count, offset + count]: causal, without row 0.

    Row 0 sees itself, since a row that sees nothing has no softmax.
    """
    places = mx.arange(cache.offset + count)
    rows = places[cache.offset :, None]
    return (places <= rows) & ((places > 0) | (rows == 0))


def make_head(config: dict[str, Any], tensors: Tensors) -> MTPHead:
    """An untrained head, quantised as the tensors are; evaluates nothing. See `arguments_of`."""
    arguments = arguments_of(config, tensors)
    model = MTPHead(arguments, LAYERS[config["model_type"]].layer)

    def quantisation(path: str, module: Any) -> dict[str, Any] | bool:
        if f"{path}.scales" not in tensors:
            return False
        inputs = module.weight.shape[-1]
        group = inputs // tensors[f"{path}.scales"].shape[-1]
        bits = tensors[f"{path}.weight"].shape[-1] * 32 // inputs
        mode = "affine" if f"{path}.biases" in tensors else MODES.get((group, bits), "affine")
        return {"group_size": group, "bits": bits, "mode": mode}

    nn.quantize(model, class_predicate=quantisation)
    return model
