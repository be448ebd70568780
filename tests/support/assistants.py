"""Untrained assistants for tiny Gemma targets."""

from typing import Any

import tiny

from dflash_mlx.drafters.gemma4_assistant.config import parse
from dflash_mlx.drafters.gemma4_assistant.drafter import AssistantDrafter
from dflash_mlx.drafters.gemma4_assistant.load import layers_of
from dflash_mlx.drafters.gemma4_assistant.model import Assistant
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target

GOLDEN = tiny.GOLDEN / "gemma4_assistant"
TARGET = tiny.GOLDEN / "gemma4" / "target"
HEADS = ("dense", "clusters")


def assistant_settings(target: Target, **changes: Any) -> dict[str, Any]:
    inner = {
        key: target.config[key]
        for key in ("vocab_size", "head_dim", "global_head_dim", "sliding_window")
    }
    inner |= {
        "model_type": "gemma4_text",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": target.hidden_size,
        "text_config": inner,
        **changes,
    }


def random_assistant(target: Target, seed: int = 2, **changes: Any) -> AssistantDrafter:
    settings = assistant_settings(target, **changes)
    model = Assistant(parse(Checkpoint(tiny.GOLDEN / "random", settings)))
    tiny.randomise(model, seed, 1.5)
    target.tap((target.layers,))
    return AssistantDrafter(model, target.embed, target.layers, layers_of(target.config))
