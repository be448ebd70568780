"""Drafter configs in the `speculators` format of the vLLM ecosystem, put into Z Lab's layout.

Knows where that format keeps what Z Lab's has too (spec section 1.1), not whether it can be used.
"""

from typing import Any

from dflash_mlx.errors import DFlashError

ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
# Keys that mean the same at the top of both layouts.
SAME = (
    "block_size",
    "mask_token_id",
    "draft_vocab_size",
    "sample_from_anchor",
    "projector_type",
    "shift_label",
    "draft_ffn_type",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
)


def in_speculators(raw: dict[str, Any]) -> bool:
    """Whether a config.json is in this format."""
    return raw.get("speculators_model_type") is not None


def in_zlab_layout(raw: dict[str, Any]) -> dict[str, Any]:
    """The same drafter's config as Z Lab would write it; DFlashError for what cannot be one."""
    kind, layer = raw["speculators_model_type"], raw.get("transformer_layer_config")
    if kind not in ARCHITECTURES:
        raise refused(f"the drafter's 'speculators_model_type: {kind}' is not supported.")
    if not isinstance(layer, dict):
        raise refused(
            f"the drafter's 'speculators_model_type: {kind}' has no 'transformer_layer_config'."
        )
    ids = raw.get("aux_hidden_state_layer_ids")
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise refused(f"the drafter's config has a wrong 'aux_hidden_state_layer_ids: {ids}'.")
    free = raw.get("sliding_window_non_causal", kind == "dflash2")
    return {
        **layer,
        **{key: raw[key] for key in SAME if key in raw},
        "architectures": [ARCHITECTURES[kind]],
        # Counted with the embedding's output as 0; Z Lab counts layers.
        "target_layer_ids": [number - 1 for number in ids],
        # Of sliding layers only: full ones always see the whole block.
        "is_causal": False if free else None,
    }


def refused(message: str) -> DFlashError:
    """The fault of a config that is not a DFlash drafter's."""
    return DFlashError(message, hint="use a DFlash or DFlash 2 drafter")
