"""A Gemma 4 assistant from its folder: checked against the target, then loaded."""

from typing import Any

from dflash_mlx.drafters.weights import check_fit, check_tensors, load_weights, read_safetensors
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target

from .config import parse
from .drafter import AssistantDrafter
from .model import Assistant

FAMILIES = ("gemma4", "gemma4_text", "gemma4_unified")
HEAD = "lm_head.weight"  # some files have a copy of the embedding


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    return checkpoint.format == "gemma4_assistant"


def check(checkpoint: Checkpoint, target: Checkpoint) -> None:
    config = parse(checkpoint)
    theirs = target.text_config
    if theirs["model_type"] not in FAMILIES:
        raise DFlashError(
            f"'{checkpoint.name}' is an assistant of Gemma 4, '{target.name}' is not.",
            hint="use the assistant of the same Gemma as target, or --draft lookup",
        )
    shapes = {name: header.shape for name, header in checkpoint.tensors.items() if name != HEAD}
    check_tensors(checkpoint, lambda: Assistant(config), shapes)
    sizes = [
        ("hidden size", config.backbone_hidden_size, theirs["hidden_size"]),
        ("vocabulary", config.text.vocab_size, theirs["vocab_size"]),
    ]
    own = layers_of(theirs)
    for layer in Assistant(config).model.layers:
        kind = layer.layer_type
        has = head_dim(theirs, kind) if kind in own else 0
        sizes.append((f"{kind} in heads of size", layer.self_attn.head_dim, has))
    check_fit(checkpoint.name, target, sizes)


def layers_of(target: dict[str, Any]) -> dict[str, int]:
    """By type, the last of a target's layers that has keys and values of its own."""
    own = target["num_hidden_layers"] - (target.get("num_kv_shared_layers") or 0)
    return {kind: number for number, kind in enumerate(target["layer_types"][:own])}


def head_dim(target: dict[str, Any], kind: str) -> int:
    """The size of a target's heads in layers of one type: full ones may have larger heads."""
    large = target.get("global_head_dim") if kind == "full_attention" else None
    return large or target["head_dim"]


def load(checkpoint: Checkpoint, target: Target, bits: int = 0) -> AssistantDrafter:
    if target.kv_bits:
        raise DFlashError(
            "a Gemma assistant reads the target's keys and values: not with a quantised KV cache.",
            hint="use another drafter, such as --draft lookup",
        )
    model = Assistant(parse(checkpoint))
    weights = read_safetensors(checkpoint)
    weights.pop(HEAD, None)
    load_weights(checkpoint, model, weights, bits, entry="pre_projection")
    model.set_dtype(target.dtype)  # or keys in another one would be converted
    target.tap((target.layers,))
    return AssistantDrafter(model, target.embed, target.layers, layers_of(target.config))
