"""Tiny DSpark drafters in each packaging, whose weights are random numbers made from their names.

Also the text that they draft after. Without MLX, so that golden/dspark/make.py can read it, too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INNER, VOCAB, MASK = 64, 32, 104, 99  # of the golden targets
HEADS, KV_HEADS, DIM, RANK = 2, 1, 16, 8
TAPS, WINDOW, FEW = (1, 3), 9, 40
PROPOSALS = 5
LENGTHS = (1, 7, 40, 300)  # of prompts
ACCEPTED = (PROPOSALS, 0, 2)  # drafts of the blocks after a prompt; one more block is drafted
ANCHORS = (5, 80, 41, 17)
KEPT = sorted({*range(0, 2 * FEW - 2, 2), 98})  # the tokens of a reduced vocabulary


def numbers(name: str, *shape: int) -> np.ndarray:
    """Normal random numbers, float32, that depend on the name and the shape alone."""
    return np.random.RandomState(crc32(name.encode())).standard_normal(shape).astype(np.float32)


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor: a norm or a factor is near 1, a bias near 0, all else keeps its input's size."""
    noise = numbers(name, *shape)
    if "norm" in name or "scalar" in name:
        return 1 + 0.1 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    return noise if "embed" in name or "markov_w1" in name else noise * shape[-1] ** -0.5


@dataclass(frozen=True)
class Case:
    """One drafter: the golden target that it has, its config.json and the shapes of its tensors.

    The last three are what a reference needs to know beside the config.
    """

    name: str
    target: str
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    kind: str = ""  # of its Markov head
    from_anchor: bool = True
    causal: tuple[bool, ...] = (False, False)

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        found = {name: weight(f"{self.name} {name}", shape) for name, shape in self.shapes.items()}
        if "d2t" in found:
            found["d2t"] = np.array(KEPT) - np.arange(FEW)
            found["t2d"] = np.isin(np.arange(VOCAB), KEPT)
        return found

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder


LAYER = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HEADS * DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * DIM),
    "self_attn.q_norm": (DIM,),
    "self_attn.k_norm": (DIM,),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
BACKBONE = {
    "fc.weight": (HIDDEN, len(TAPS) * HIDDEN),
    "hidden_norm.weight": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    **{f"layers.{n}.{name}.weight": shape for n in (0, 1) for name, shape in LAYER.items()},
}
OWN = {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
GEMMA4 = {
    **{name: shape for name, shape in BACKBONE.items() if "v_proj" not in name},
    **{f"layers.{n}.pre_feedforward_layernorm.weight": (HIDDEN,) for n in (0, 1)},
    **{f"layers.{n}.post_feedforward_layernorm.weight": (HIDDEN,) for n in (0, 1)},
    **{f"layers.{n}.layer_scalar": (1,) for n in (0, 1)},
}


def markov(kind: str, drafted: int = VOCAB, prefix: str = "") -> dict[str, tuple[int, ...]]:
    more = {
        "vanilla": {},
        "gated": {"gate_proj.weight": (RANK, HIDDEN + RANK), "gate_proj.bias": (RANK,)},
        "rnn": {
            "joint_proj.weight": (3 * RANK, 2 * RANK + HIDDEN),
            "joint_proj.bias": (3 * RANK,),
        },
    }[kind]
    plain = {"markov_w1.weight": (VOCAB, RANK), "markov_w2.weight": (drafted, RANK)}
    return {f"{prefix}markov_head.{name}": shape for name, shape in (plain | more).items()}


def confidence(width: int = HIDDEN + RANK) -> dict[str, tuple[int, ...]]:
    return {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}


QWEN3 = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "layer_types": ["full_attention"] * 2,
    "max_position_embeddings": 4096,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "num_key_value_heads": KV_HEADS,
    "num_target_layers": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
}
HEAD = {
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
PLACES = {"block_size": PROPOSALS, "mask_token_id": MASK, "target_layer_ids": list(TAPS)}


def deepspec(**changes: Any) -> dict[str, Any]:
    """As DeepSpec writes it: everything at the top level."""
    rope = {"rope_theta": 10000.0, "rope_type": "default"}
    config = {**QWEN3, **PLACES, **HEAD, "num_anchors": 512, "rope_parameters": rope}
    del config["rope_theta"]
    return {**config, "architectures": ["Qwen3DSparkModel"], **changes}


def speculators(**changes: Any) -> dict[str, Any]:
    """As `speculators` writes it: the layers' config inside, taps counted from the embedding on."""
    act = changes.pop("hidden_act", "silu")
    layers = ["sliding_attention", "full_attention"]
    layer = {**QWEN3, "layer_types": layers, "hidden_act": act}
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "transformer_layer_config": {**layer, "sliding_window": WINDOW},
        "aux_hidden_state_layer_ids": [number + 1 for number in TAPS],
        "block_size": PROPOSALS,
        "mask_token_id": MASK,
        "draft_vocab_size": VOCAB,
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "speculators_config": {"algorithm": "dspark"},
        **HEAD,
        **changes,
    }


def specforge(**changes: Any) -> dict[str, Any]:
    """As SpecForge writes it: what is no layer's in `dflash_config`."""
    nested: dict[str, Any] = {
        "attention_mode": "gqa",
        "confidence_head_alpha": 1.0,
        "projector_type": "dspark",
        **{key: PLACES[key] for key in ("mask_token_id", "target_layer_ids")},
        **HEAD,
        **changes,
    }
    architectures = ["DSparkDraftModel"]
    return {
        **QWEN3,
        "architectures": architectures,
        "block_size": PROPOSALS,
        "dflash_config": nested,
    }


def liquid() -> dict[str, Any]:
    """As Liquid AI writes it: heads at the top level, and pairs of the rotation side by side."""
    nested = {"mask_token_id": MASK, "target_layer_ids": list(TAPS), "num_target_layers": 8}
    heads = {key: value for key, value in HEAD.items() if "with_markov" not in key}
    return {
        **{key: value for key, value in QWEN3.items() if key != "num_target_layers"},
        **heads,
        "architectures": ["Lfm2DSparkDraftModel"],
        "block_size": PROPOSALS,
        "dflash_config": nested,
        "rope_is_neox_style": False,
    }


def gemma4() -> dict[str, Any]:
    """As DeepSpec writes it with the layers of Gemma 4: values are keys, a quarter is rotated."""
    rope = {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"}
    return {
        **deepspec(),
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "attention_k_eq_v": True,
        "enable_moe_block": False,
        "final_logit_softcapping": 3.0,
        "global_head_dim": DIM,
        "head_dim": 99,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "num_global_key_value_heads": KV_HEADS,
        "num_key_value_heads": 99,
        "num_target_layers": 6,
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    }


def jetspec() -> dict[str, Any]:
    """As JetSpec writes it: DFlash, but no row of a block sees those after it."""
    nested = {"mask_token_id": MASK, "target_layer_ids": list(TAPS), "causal_head": True}
    return {
        **QWEN3,
        "architectures": ["DFlashDraftModel"],
        "block_size": PROPOSALS + 1,
        "dflash_config": nested,
    }


NO_HEADS: Mapping[str, Any] = {"markov_rank": 0, "enable_confidence_head": False}
FULL = "qwen3_full"
CASES = (
    Case(
        "deepspec", FULL, deepspec(), BACKBONE | OWN | markov("vanilla") | confidence(), "vanilla"
    ),
    Case(
        "deepspec_rnn",
        FULL,
        deepspec(markov_head_type="rnn"),
        BACKBONE | OWN | markov("rnn") | confidence(),
        "rnn",
    ),
    Case("deepspec_dflash", FULL, deepspec(**NO_HEADS), BACKBONE | OWN),
    Case("gemma4", "gemma4", gemma4(), GEMMA4 | OWN | markov("vanilla") | confidence(), "vanilla"),
    Case(
        "speculators",
        FULL,
        speculators(
            markov_head_type="gated", confidence_head_with_markov=False, draft_vocab_size=FEW
        ),
        BACKBONE
        | {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (FEW, HIDDEN), "d2t": (FEW,)}
        | markov("gated", FEW)
        | confidence(HIDDEN),
        "gated",
        causal=(True, False),
    ),
    Case(
        "speculators_masks",
        FULL,
        speculators(
            sample_from_anchor=False, block_size=PROPOSALS + 1, hidden_act="gelu_pytorch_tanh"
        ),
        BACKBONE | markov("vanilla") | confidence(),
        "vanilla",
        from_anchor=False,
        causal=(True, False),
    ),
    Case(
        "specforge",
        FULL,
        specforge(markov_head_type="rnn"),
        BACKBONE | markov("rnn", prefix="logit_head.") | confidence(),
        "rnn",
    ),
    Case("liquid", FULL, liquid(), BACKBONE | markov("vanilla") | confidence(), "vanilla"),
    Case("jetspec", FULL, jetspec(), BACKBONE, from_anchor=False, causal=(True, True)),
)
BY_NAME = {case.name: case for case in CASES}


# The text


def prompt_of(length: int) -> list[int]:
    return np.random.RandomState(length).randint(0, 96, length).tolist()


def taps_of(start: int, tokens: list[int]) -> np.ndarray:
    """Taps [S, K * H] of tokens from a place on, as if a target had said them."""
    width = len(TAPS) * HIDDEN
    places = numbers("places", 400, width)[start : start + len(tokens)]
    return places + numbers("tokens", VOCAB, width)[tokens]
