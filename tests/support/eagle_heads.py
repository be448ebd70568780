"""Untrained EAGLE-3 heads for tiny targets."""

from typing import Any

import mlx.core as mx
import tiny

from dflash_mlx.drafters.eagle3.config import parse
from dflash_mlx.drafters.eagle3.drafter import EagleDrafter
from dflash_mlx.drafters.eagle3.model import EagleModel
from dflash_mlx.models.target import Target


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": tiny.BASE["hidden_size"],
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": tiny.VOCAB,
        "draft_vocab_size": 60,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 2]},
        **changes,
    }


def random_head(target: Target, seed: int = 2, **changes: Any) -> EagleDrafter:
    config = parse(settings(vocab_size=target.vocab_size, **changes))
    taps = (0, 1, 2)
    model = EagleModel(config, len(taps), target.hidden_size, frozenset({"lm_head"}))
    tiny.randomise(model, seed, 1.5)
    if "d2t" in model:
        model.d2t = mx.arange(60) // 2
    target.tap(taps)
    return EagleDrafter(model, target.embed, target.head, target.head_type, taps)
