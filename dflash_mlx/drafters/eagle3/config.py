"""Parsing and validation of an EAGLE-3 head's `config.json` (arXiv 2503.01840).

It reads the `speculators` format and the authors' layout (SafeAILab, yuhuili), also with the
`eagle_config` that AngelSlim, SpecForge and NVIDIA add. A key that selects an unsupported
computation raises an error that names it.
"""

from dataclasses import dataclass
from typing import Any

from dflash_mlx.drafters.entries import Entries, LayerConfig, invalid_value, layer_settings
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.formats import EAGLE3, in_speculators

ARCHITECTURES = (
    EAGLE3,
    "Eagle3LlamaForCausalLM",
    "LlamaForCausalLM",  # the authors' own
    "Eagle3Speculator",
    "Eagle3DraftModel",
)
# Keys that may select an unsupported computation, with their supported values.
REFUSED: dict[str, tuple[object, ...]] = {
    "num_hidden_layers": (1,),
    "use_aux_hidden_state": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "parallel_draft_step": (1,),
    "parallel_drafting": (False,),
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "logit_scale": (1.0,),
    "kv_lora_rank": (),
    "partial_rotary_factor": (1.0,),
    "pretraining_tp": (1,),
}
HINT = "use an EAGLE-3 head of one layer in the layout of SafeAILab's or the speculators format"
NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
Layers = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig(LayerConfig):
    """All settings of an EAGLE-3 head's forward pass.

    layer_ids: the target's layers (0-based) whose outputs are read; None for the authors' choice.
    target_hidden_size: None for the head's own.
    norm_before_residual: the residual around the attention is normed too. norm_before_fc: the taps
    are normed together; fc_norm: each by itself. norm_output: the next draft starts from the normed
    hidden state.
    """

    target_hidden_size: int | None
    layer_ids: Layers | None
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    def taps(self, layers: int) -> Layers:
        """The layers to tap of a target with n = `layers` layers.

        The authors read the inputs of the layers 2, n // 2 and n - 3, which are the outputs of the
        layers before them.
        """
        return self.layer_ids or (1, layers // 2 - 1, layers - 4)


def parse(raw: dict[str, Any]) -> EagleConfig:
    """Parse a head's config. Raises DFlashError for an invalid or unsupported entry."""
    names = raw.get("architectures") or [EAGLE3]
    if not set(ARCHITECTURES) & set(names):
        raise DFlashError(f"EAGLE-3 heads of the kind '{names[0]}' are not supported.", hint=HINT)
    nested = raw.get("eagle_config") or {}
    layer = raw.get("transformer_layer_config") if in_speculators(raw) else raw
    if not isinstance(layer, dict) or not isinstance(nested, dict):
        which = "eagle_config" if isinstance(layer, dict) else "transformer_layer_config"
        raise invalid_value(which, raw.get(which))
    entries = Entries(nested, raw, layer, hint=HINT)
    look = entries.get
    entries.refuse(REFUSED)
    if "sliding_attention" in (look("layer_types") or []):
        raise DFlashError("sliding layers of an EAGLE-3 head are not supported.", hint=HINT)
    if in_speculators(raw) and "norm_before_residual" not in raw:  # readers' defaults differ
        raise DFlashError("the drafter's config has no 'norm_before_residual'.", hint=HINT)
    wide = look("target_hidden_size")
    norms: dict[str, Any] = {norm: bool(look(norm, False)) for norm in NORMS}
    config = EagleConfig(
        **layer_settings(entries, layer, 2048),
        target_hidden_size=wide if wide is None else entries.whole("target_hidden_size"),
        layer_ids=layer_ids(raw, nested),
        qk_norm=in_speculators(raw) and layer.get("model_type") == "qwen3",
        **norms,
    )
    for key, wrong, value in (
        ("num_key_value_heads", config.num_heads % config.num_kv_heads > 0, config.num_kv_heads),
        ("hidden_size", config.hidden_size % 2 > 0, config.hidden_size),
    ):
        if wrong:
            raise invalid_value(key, value)
    return config


def layer_ids(raw: dict[str, Any], nested: dict[str, Any]) -> Layers | None:
    """The layers whose outputs are read; None if the config names none.

    The ids name inputs of layers: 2 means the output of layer 1. In an `eagle_config` whose first
    id is 1 they name outputs; SGLang tells the two apart in the same way.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    inner = nested.get(key)
    ids = inner or raw.get(key)
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(n) is int and n > 0 for n in ids):
        raise invalid_value(key, ids)
    outputs = bool(inner) and ids[0] == 1
    return tuple(ids) if outputs else tuple(number - 1 for number in ids)
