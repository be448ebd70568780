"""Parsing and validation of the `config.json` of a DFlash, DFlash 2 or DSpark drafter.

The keys and defaults are those of Z Lab's checkpoints, at the top level or in `dflash_config`;
other layouts are converted first. A key that selects an unsupported computation raises an error
that names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from dflash_mlx.drafters.entries import (
    Entries,
    LayerConfig,
    invalid_value,
    layer_settings,
    unsupported,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.formats import (
    ARCHITECTURES,
    GEMMA4_DSPARK,
    QWEN3_DSPARK,
    V1,
    V2,
    in_speculators,
    is_assistant,
    is_dflash2,
    is_dspark,
)

# Meta's own DFlash drafter of Muse Glimmer, in the layout of Z Lab's.

ASSISTANT_TARGET = {  # Muse-Glimmer-30B: the head's factor is (6656 / 256) ** -0.5
    "vocab_size": 202_048,
    "output_multiplier": 0.19611613513818404,
    "final_logit_softcapping": 20.0,
}
ASSISTANT_NAMES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}


# Conversion of drafter configs in vLLM's `speculators` format to Z Lab's layout.

SPECULATORS_ARCHITECTURES = {"dflash": V1, "dflash2": V2, "dspark": "DSparkDraftModel"}
# Top-level keys with the same meaning in both layouts.
SHARED_KEYS = (
    "block_size mask_token_id draft_vocab_size sample_from_anchor projector_type shift_label "
    "draft_ffn_type conv_kernel_size conv_group_size selector_rank selector_top_k markov_rank "
    "markov_head_type"
).split()
SPECULATORS_DSPARK = {"block_size": 8, "markov_rank": 256}


def from_speculators(raw: dict[str, Any]) -> dict[str, Any]:
    """The config in Z Lab's layout. Raises DFlashError if it is not a DFlash drafter's."""
    kind = raw["speculators_model_type"]
    layer = raw.get("transformer_layer_config")
    ids = raw.get("aux_hidden_state_layer_ids")
    if kind not in SPECULATORS_ARCHITECTURES:
        raise unsupported("speculators_model_type", kind, HINT)
    if not isinstance(layer, dict):
        raise DFlashError(
            f"the drafter's 'speculators_model_type: {kind}' has no 'transformer_layer_config'.",
            hint=HINT,
        )
    if not is_ids(ids):
        raise invalid_value("aux_hidden_state_layer_ids", ids)
    non_causal = raw.get("sliding_window_non_causal", kind == "dflash2")
    return {
        **layer,
        **(SPECULATORS_DSPARK if kind == "dspark" else {}),
        **{key: raw[key] for key in SHARED_KEYS if raw.get(key) is not None},
        "architectures": [SPECULATORS_ARCHITECTURES[kind]],
        # Index 0 is the embedding's output; in Z Lab's layout it is the first layer.
        "target_layer_ids": [number - 1 for number in ids],
        # `sliding_window_non_causal` is for sliding layers; full layers are never causal.
        "is_causal": False if non_causal else None,
    }


def is_ids(ids: Any) -> TypeGuard[Sequence[int]]:
    return isinstance(ids, list | tuple) and all(type(number) is int for number in ids)


# Conversion of DeepSpec's drafters with the layers of Gemma 4.


def from_gemma4(raw: dict[str, Any]) -> dict[str, Any]:
    """The config in Z Lab's layout: its layers are like Gemma's with full attention.

    Raises DFlashError for what Gemma 4 has and these drafters do not.
    """
    shared = raw.get("num_kv_shared_layers") or 0
    wide = raw.get("use_double_wide_mlp") and 0 < shared < raw.get("num_hidden_layers", 0)
    for key, has_it in (
        ("enable_moe_block", raw.get("enable_moe_block")),
        ("hidden_size_per_layer_input", raw.get("hidden_size_per_layer_input")),
        ("num_kv_shared_layers", wide),
    ):
        if has_it:
            raise unsupported(key, raw[key], HINT)
    rope: Any = raw.get("rope_parameters")
    rope = rope.get("full_attention") if isinstance(rope, dict) else None
    heads = "num_global_key_value_heads" if raw.get("attention_k_eq_v") else "num_key_value_heads"
    for key, is_there in (
        ("rope_parameters", isinstance(rope, dict)),
        ("global_head_dim", raw.get("global_head_dim")),
        (heads, raw.get(heads)),
    ):
        if not is_there:
            raise invalid_value(key, raw.get(key))
    return {
        **raw,
        "head_dim": raw["global_head_dim"],
        "num_key_value_heads": raw[heads],
        "hidden_act": raw.get("hidden_activation", GELU),
        "rope_parameters": None,
        "rope_theta": rope.get("rope_theta"),
        "rope_scaling": rope,
    }


# The keys of dflash_config. Those of the first two lines do not change the computation.
KNOWN = set(
    "mask_token num_target_layers use_aux_hidden_state projector_type num_anchors "
    "confidence_head_alpha enable_confidence_head confidence_head_with_markov "
    "mask_token_id target_layer_ids block_size input_embedding_scale output_multiplier "
    "final_logit_softcapping causal is_causal causal_head use_swa swa_window_size "
    "sample_from_anchor rope_is_neox_style target_hidden_size markov_rank markov_head_type".split()
)
# Keys of dflash_config for DFlash 2 only, with the values of the published checkpoints as defaults.
DFLASH2 = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
# Keys, at either level, that may select an unsupported computation, with their supported values.
REFUSED: dict[str, tuple[object, ...]] = {
    "attention_sink_bias": (False,),
    "attention_value_scale": (1.0,),
    "use_gemma_norm": (False,),
    "partial_rotary_factor": (1.0,),
    "attention_mode": ("gqa", "mha"),
    "projector_type": ("dflash", "dflash2", "dspark"),
    "shift_label": (False,),
    "draft_ffn_type": ("dense",),
}
HINT = "use a DFlash, DFlash 2 or DSpark drafter; `dflash models list` shows the known pairs"
MARKOV_HEADS = ("vanilla", "gated", "rnn")
SILU, GELU = "silu", "gelu_pytorch_tanh"  # activations


@dataclass(frozen=True, slots=True)
class DFlash2:
    """The additional sizes of a DFlash 2 drafter (inco.ai/blog/dflash2)."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True, slots=True)
class DSpark:
    """The additional head of a DSpark drafter (arXiv 2607.05147); its confidence head is not used.

    markov_rank: 0 without a Markov head. markov_head: one of MARKOV_HEADS.
    """

    markov_rank: int
    markov_head: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig(LayerConfig):
    """All settings of the drafter's forward pass (DFlash paper, section 3).

    `block_size` counts the anchor and the drafts. `target_layer_ids` are 0-based target layers
    whose outputs the drafter reads; `sliding` says for each draft layer whether it has a sliding
    `window` (in tokens). `from_anchor`: the anchor's position drafts, too, so that a block has one
    position less. `gemma4`: layers like Gemma 4's; with `shared_values` the values are the keys,
    normed in another way.
    """

    num_layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    sliding: tuple[bool, ...]
    window: int | None
    is_causal: bool | None
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None
    dflash2: DFlash2 | None = None
    dspark: DSpark | None = None
    from_anchor: bool = False
    gemma4: bool = False
    shared_values: bool = False
    interleaved_rope: bool = False
    hidden_act: str = SILU

    @property
    def own_embedding_scale(self) -> float:
        """The factor of the drafter's own embedding; its target's has one of its own."""
        return self.hidden_size**0.5 if self.gemma4 else 1.0

    def causal(self, layer: int) -> bool:
        """Whether a layer's attention inside the block is causal.

        `is_causal` of the config decides; without it sliding layers are causal, full ones are not.
        """
        return self.sliding[layer] if self.is_causal is None else self.is_causal


def default_layer_ids(target_layers: int, count: int) -> tuple[int, ...]:
    """Z Lab's default `target_layer_ids`: `count` layers evenly from layer 1 to the third last."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def parse(raw: dict[str, Any]) -> DraftConfig:
    """Parse a drafter's config. Raises DFlashError for an invalid or unsupported entry."""
    if in_speculators(raw):
        raw = from_speculators(raw)
    if is_assistant(raw):
        raw = {**ASSISTANT_TARGET, **raw, "architectures": [V1], "is_causal": False}
    gemma4 = GEMMA4_DSPARK in (raw.get("architectures") or [])
    if gemma4:
        raw = from_gemma4(raw)
    nested = raw.get("dflash_config") or {}
    if not isinstance(nested, dict):
        raise invalid_value("dflash_config", nested)
    refuse_unsupported(raw, nested)
    entries = Entries(nested, raw, hint=HINT)
    get, whole = entries.get, entries.whole
    layers = whole("num_hidden_layers")
    sizes = layer_settings(entries, raw, 32768)
    dflash2 = dspark = None
    if is_dflash2(raw):
        dflash2 = DFlash2(*(whole(key, usual) for key, usual in DFLASH2.items()))
    if is_dspark(raw):
        head = str(get("markov_head_type", MARKOV_HEADS[0])).lower()
        dspark = DSpark(whole("markov_rank", 0, least=0), head)
    from_anchor = entries.flag("sample_from_anchor", dspark is not None)
    check_heads(dspark, dflash2, from_anchor=from_anchor)
    sliding, window = sliding_layers(entries, layers)
    config = DraftConfig(
        **sizes,
        num_layers=layers,
        block_size=whole("block_size", 16, least=1 if from_anchor else 2) + from_anchor,
        mask_token_id=whole("mask_token_id", least=0),
        target_layer_ids=target_layer_ids(entries, layers),
        num_target_layers=get("num_target_layers"),
        sliding=sliding,
        window=window,
        is_causal=causality(raw, nested),
        input_embedding_scale=get("input_embedding_scale", 1.0),
        output_multiplier=get("output_multiplier", 1.0),
        final_logit_softcapping=get("final_logit_softcapping") or None,  # 0 also means none
        dflash2=dflash2,
        dspark=dspark,
        from_anchor=from_anchor,
        gemma4=gemma4,
        shared_values=gemma4 and bool(raw.get("attention_k_eq_v")),
        interleaved_rope=not entries.flag("rope_is_neox_style", True),
        hidden_act=raw.get("hidden_act", SILU),
    )
    check_sizes(config, whole("target_hidden_size", config.hidden_size))
    return config


def refuse_unsupported(raw: dict[str, Any], nested: dict[str, Any]) -> None:
    names = raw.get("architectures") or []
    if names and not set(ARCHITECTURES) & set(names):
        raise DFlashError(f"drafters of the kind '{names[0]}' are not supported.", hint=HINT)
    Entries(nested, raw, raw.get("rope_parameters") or {}, hint=HINT).refuse(REFUSED)
    known = {*KNOWN, *REFUSED, *(DFLASH2 if is_dflash2(raw) else ())}
    for key in nested:
        if key not in known:
            raise DFlashError(f"the drafter's dflash_config has an unknown '{key}'.", hint=HINT)
    if raw.get("hidden_act", SILU) not in (SILU, GELU):
        raise DFlashError(f"the activation '{raw['hidden_act']}' is not supported.", hint=HINT)


def check_heads(dspark: DSpark | None, dflash2: DFlash2 | None, *, from_anchor: bool) -> None:
    """Raise DFlashError for heads that no published code has."""
    if dspark is None:
        return
    kind = dspark.markov_head
    if kind not in MARKOV_HEADS:
        raise unsupported("markov_head_type", kind, HINT)
    if dflash2:
        raise DFlashError("a drafter of DFlash 2 with a Markov head is not supported.", hint=HINT)
    if kind == "rnn" and dspark.markov_rank and not from_anchor:
        raise DFlashError(
            "the drafter's 'markov_head_type: rnn' is not supported with 'sample_from_anchor: "
            "False'.",
            hint=HINT,
        )


def check_sizes(config: DraftConfig, target_hidden: int) -> None:
    if target_hidden != config.hidden_size:
        raise invalid_value("target_hidden_size", target_hidden)
    if (extra := config.dflash2) is None:
        return
    for key, wrong, value in (
        ("draft_vocab_size", config.draft_vocab_size is not None, config.draft_vocab_size),
        ("conv_group_size", config.hidden_size % extra.conv_group_size, extra.conv_group_size),
        ("selector_top_k", config.vocab_size < extra.selector_top_k, extra.selector_top_k),
    ):
        if wrong:
            raise invalid_value(key, value)


def target_layer_ids(entries: Entries, layers: int) -> tuple[int, ...]:
    ids = entries.get("target_layer_ids")
    if ids is None:
        return default_layer_ids(entries.whole("num_target_layers"), layers)
    if not ids or not is_ids(ids):
        raise invalid_value("target_layer_ids", ids)
    return tuple(ids)


def causality(raw: dict[str, Any], nested: dict[str, Any]) -> bool | None:
    """See `DraftConfig.causal`; DFlash 2 and DeepSpec's drafters are never causal by themselves."""
    values = (raw.get("is_causal"), *map(nested.get, ("is_causal", "causal", "causal_head")))
    never = is_dflash2(raw) or {QWEN3_DSPARK, GEMMA4_DSPARK} & set(raw.get("architectures") or [])
    return next((value for value in values if value is not None), False if never else None)


def sliding_layers(entries: Entries, layers: int) -> tuple[tuple[bool, ...], int | None]:
    """For each layer whether it is a sliding one, and the window in tokens (None without one)."""
    kinds = entries.get("layer_types")
    if kinds is None:
        swa = entries.get("use_swa", False)
        kinds = ["sliding_attention" if swa else "full_attention"] * layers
    if set(kinds) - {"full_attention", "sliding_attention"} or len(kinds) != layers:
        raise DFlashError(
            f"the drafter's layer_types {sorted(set(kinds))} do not fit its {layers} layers.",
            hint=HINT,
        )
    sliding = tuple(kind == "sliding_attention" for kind in kinds)
    if not any(sliding):
        return sliding, None
    window = entries.get("swa_window_size", entries.get("sliding_window"))
    if not window:
        raise DFlashError("the drafter has sliding layers but no 'sliding_window'.", hint=HINT)
    return sliding, window
