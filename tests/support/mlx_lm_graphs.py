"""The graphs of mlx-lm's own models, as MLX evaluates them on the CPU."""

import re
from collections import Counter
from io import StringIO
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from count.models import Model
from mlx_lm.models import qwen3, qwen3_5, qwen3_moe
from mlx_lm.models.cache import make_prompt_cache


def primitives(model: Model, rows: int) -> Counter[str]:
    """The primitives of mlx-lm's model of these figures over so many rows, by name."""
    ours = built(model)
    cache = make_prompt_cache(ours)
    mx.eval(ours(mx.zeros((1, 8), mx.int32), cache=cache), [one.state for one in cache])
    drawing = StringIO()
    mx.export_to_dot(drawing, ours(mx.zeros((1, rows), mx.int32), cache=cache))
    return Counter(re.findall(r'label ="([A-Z]\w+)", shape=rectangle', drawing.getvalue()))


def built(model: Model) -> Any:
    """mlx-lm's model of these figures, in 4 bits."""
    figures: dict[str, Any] = {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "intermediate_size": model.width,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.size,
        "rms_norm_eps": 1e-6,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    if own := model.recurrence:
        args = qwen3_5.TextModelArgs(
            model_type="qwen3_5",
            linear_num_key_heads=own.key_heads,
            linear_num_value_heads=own.value_heads,
            linear_key_head_dim=own.size,
            linear_value_head_dim=own.size,
            linear_conv_kernel_dim=own.window,
            full_attention_interval=own.interval,
            **figures,
        )
        ours: nn.Module = qwen3_5.TextModel(args)
    elif mixed := model.mixture:
        args = qwen3_moe.ModelArgs(
            model_type="qwen3_moe",
            rope_theta=1e4,
            num_experts=mixed.experts,
            num_experts_per_tok=mixed.taken,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            moe_intermediate_size=mixed.width,
            norm_topk_prob=True,
            **figures,
        )
        ours = qwen3_moe.Model(args)
    else:
        ours = qwen3.Model(qwen3.ModelArgs(model_type="qwen3", rope_theta=1e4, **figures))
    ours.set_dtype(mx.bfloat16)
    nn.quantize(ours, 64, 4)
    return ours
