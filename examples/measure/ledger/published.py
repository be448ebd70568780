"""The config.json of published targets and drafters, without weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.files.checkpoint import Checkpoint, load_config
from dflash_mlx.models.target import target_config

SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


@dataclass(frozen=True, slots=True)
class Published:
    """The shapes of the pair `name`; `mode` is mlx-lm's quantisation of the target, or "none"."""

    name: str
    target: Mapping[str, Any]
    drafter: Mapping[str, Any]
    mode: str = "affine"
    bits: int = 4
    group_size: int = 64


def of_folders(name: str, target: Path, drafter: Path) -> Published:
    """A pair from the configs in two folders; DFlashError for an invalid config."""
    config = target_config(Checkpoint.read(target))
    found: dict[str, Any] = config.get("quantization") or {"mode": "none"}
    bits, group = found.get("bits", 4), found.get("group_size", 64)
    return Published(name, config, load_config(drafter), found.get("mode", "affine"), bits, group)


def shape(hidden: int, inner: int, layers: int, heads: int, kv: int, dim: int) -> dict[str, Any]:
    """The sizes that targets and drafters share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
    }


def drafter(
    sizes: dict[str, Any], target: Mapping[str, Any], taps: int, block: int, **more: Any
) -> dict[str, Any]:
    """The config.json of a DFlash drafter with evenly spread taps."""
    layers = target["num_hidden_layers"]
    spread = [round(1 + i * (layers - 4) / (taps - 1)) for i in range(taps)]
    window = more.get("sliding_window")
    kinds = [SLIDING if window else FULL] * (sizes["num_hidden_layers"] - 1) + [FULL]
    return {
        "architectures": ["DFlashDraftModel"],
        "rope_theta": 1e6,
        **sizes,
        "vocab_size": target["vocab_size"],
        "num_target_layers": layers,
        "layer_types": kinds,
        "use_sliding_window": bool(window),
        "dflash_config": {"mask_token_id": 4, "target_layer_ids": spread, "block_size": block},
        **more,
    }


def drafter_of_kind(
    kind: str, sizes: dict[str, Any], target: Mapping[str, Any], taps: int, block: int
) -> dict[str, Any]:
    """The config.json of a drafter of a kind of hub/kinds.py; `block` as it stands there.

    An MTP head has the sizes of its target's layers. LFM2.5's drafters turn in interleaved pairs.
    """
    if kind == "mtp":
        return {"model_type": "qwen3_5_mtp"}
    base = drafter(sizes, target, taps, block)
    if kind == "dflash2":
        return {**base, "architectures": ["DFlash2DraftModel"]}
    if kind == "dspark":
        interleaved = target["model_type"].startswith("lfm2")
        return {
            **base,
            "architectures": ["Lfm2DSparkDraftModel" if interleaved else "Qwen3DSparkModel"],
            "rope_is_neox_style": not interleaved,
            "markov_rank": 256,
            "enable_confidence_head": True,
        }
    return base


QWEN3 = {
    **shape(4096, 12_288, 36, 32, 8, 128),
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
CODER = {
    **shape(2048, 6144, 48, 32, 4, 128),
    "model_type": "qwen3_moe",
    "vocab_size": 151_936,
    "rope_theta": 1e7,
    "tie_word_embeddings": False,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
HYBRID = {
    **shape(4096, 12_288, 32, 16, 4, 256),
    "model_type": "qwen3_5",
    "vocab_size": 248_320,
    "tie_word_embeddings": False,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
LARGE_HYBRID = {
    **HYBRID,
    **shape(5120, 17_408, 64, 24, 4, 256),
    "linear_num_value_heads": 48,
}
MIXED_HYBRID = {
    **HYBRID,
    **shape(2048, 0, 40, 16, 2, 256),
    "model_type": "qwen3_5_moe",
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
GEMMA = {
    **shape(2816, 2112, 30, 16, 8, 256),
    "model_type": "gemma4",
    "vocab_size": 262_144,
    "tie_word_embeddings": True,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
    "sliding_window": 1024,
    "layer_types": ([SLIDING] * 5 + [FULL]) * 5,
    "final_logit_softcapping": 30.0,
}
OSS = {
    **shape(2880, 2880, 24, 64, 8, 64),
    "model_type": "gpt_oss",
    "vocab_size": 201_088,
    "tie_word_embeddings": False,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": [SLIDING, FULL] * 12,
    "rope_theta": 150_000,
    "rope_scaling": YARN,
}
# LFM2-2.6B's (LiquidAI/LFM2-2.6B-Transcript-ONNX, config.json) with the vocabulary of LFM2.5.
LFM = {
    **shape(2048, 10_752, 30, 32, 8, 64),
    "model_type": "lfm2",
    "vocab_size": 128_000,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "full_attn_idxs": [2, 5, 9, 13, 17, 21, 24, 27],
    "conv_L_cache": 3,
    "conv_bias": False,
    "block_dim": 2048,
    "block_ff_dim": 10_752,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
}
# LFM2-8B-A1B's (Ba2han/augment-multi-ft2, config.json), with the same vocabulary.
LFM_MOE = {
    **shape(2048, 7168, 24, 32, 8, 64),
    "model_type": "lfm2_moe",
    "vocab_size": 128_000,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "full_attn_idxs": [2, 6, 10, 14, 18, 21],
    "conv_L_cache": 3,
    "conv_bias": False,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1792,
    "norm_topk_prob": True,
    "use_expert_bias": True,
}
OSS_DRAFT = {"attention_bias": True, "rope_theta": 150_000.0, "rope_scaling": YARN}
PAIRS = (
    Published(
        "Qwen3-8B-4bit", QWEN3, drafter(shape(4096, 12_288, 5, 32, 8, 128), QWEN3, 5, 16)
    ),
    Published(
        "Qwen3-Coder-30B-A3B-4bit", CODER, drafter(shape(2048, 6144, 8, 32, 4, 128), CODER, 5, 16)
    ),
    Published(
        "Qwen3.5-9B-4bit",
        HYBRID,
        drafter(shape(4096, 12_288, 6, 32, 8, 128), HYBRID, 8, 16, sliding_window=4096),
    ),
    Published(
        "gemma-4-26B-A4B-4bit",
        GEMMA,
        drafter(shape(2816, 5632, 5, 32, 8, 128), GEMMA, 6, 16, sliding_window=2048),
    ),
    Published(
        "gpt-oss-20b",
        OSS,
        drafter(shape(2880, 7680, 8, 64, 8, 64), OSS, 5, 8, **OSS_DRAFT),
        mode="mxfp4",
    ),
)  # fmt: skip
# With drafters of the shapes of LiquidAI's, which are DSpark: no DFlash drafter is published.
LIQUID = (
    Published(
        "LFM2.5-2.6B-4bit", LFM, drafter(shape(2048, 6144, 5, 32, 8, 64), LFM, 5, 10)
    ),
    Published(
        "LFM2.5-8B-A1B-4bit", LFM_MOE, drafter(shape(2048, 6144, 5, 32, 8, 64), LFM_MOE, 5, 10)
    ),
)  # fmt: skip
# Counted beside the others; too large for the tables and tests of every pair.
LARGE = Published(
    "Qwen3.6-27B-4bit",
    LARGE_HYBRID,
    drafter(shape(5120, 17_408, 6, 32, 8, 128), LARGE_HYBRID, 8, 16, sliding_window=4096),
)
