"""A Gemma 4 assistant from its folder: checked against the target, then loaded."""

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.drafters.weights import load_weights, model_shapes, read_safetensors
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, compare_shapes
from dflash_mlx.models.target import Target

from .config import AssistantConfig, parse
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
    compare_shapes(
        checkpoint.path,
        model_shapes(lambda: Assistant(config)),
        {name: header.shape for name, header in checkpoint.tensors.items() if name != HEAD},
    )
    for what, mine, wanted in sizes(config, theirs):
        if mine != wanted:
            raise DFlashError(
                f"drafter '{checkpoint.name}' expects a target with {what} {mine}, "
                f"'{target.name}' has {wanted}.",
                hint="use the assistant that was trained with this target",
            )


def sizes(config: AssistantConfig, target: dict[str, Any]) -> list[tuple[str, int, int]]:
    """What has to be equal: its name, the assistant's value, the target's."""
    text = config.text
    found = [
        ("hidden size", config.backbone_hidden_size, target["hidden_size"]),
        ("vocabulary", text.vocab_size, target["vocab_size"]),
    ]
    own = layers_of(target)
    for layer in Assistant(config).model.layers:
        kind = layer.layer_type
        theirs = head_dim(target, kind) if kind in own else 0
        found.append((f"{kind} in heads of size", layer.self_attn.head_dim, theirs))
    return found


def layers_of(target: dict[str, Any]) -> dict[str, int]:
    """By type, the last of a target's layers that has keys and values of its own."""
    own = target["num_hidden_layers"] - (target.get("num_kv_shared_layers") or 0)
    return {kind: number for number, kind in enumerate(target["layer_types"][:own])}


def head_dim(target: dict[str, Any], kind: str) -> int:
    """The size of a target's heads in layers of one type: full ones may have larger heads."""
    large = target.get("global_head_dim") if kind == "full_attention" else None
    return large or target["head_dim"]


def load(
    checkpoint: Checkpoint,
    target: Target,
    tokenizer: TokenizerWrapper | None = None,
    *,
    bits: int = 0,
    trust_remote_code: bool = False,
) -> AssistantDrafter:
    if target.kv_bits:
        raise DFlashError(
            "a Gemma assistant reads the target's keys and values: not with a quantised KV cache.",
            hint="use another drafter, such as --draft lookup",
        )
    model = Assistant(parse(checkpoint))
    weights = read_safetensors(checkpoint)
    weights.pop(HEAD, None)
    load_weights(model, weights, bits, entry="pre_projection")
    model.set_dtype(target.dtype)  # or keys in another one would be converted
    target.tap((target.layers,))
    return AssistantDrafter(model, target.embed, target.layers, layers_of(target.config))
