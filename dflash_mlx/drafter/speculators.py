"""Conversion of drafter configs in vLLM's `speculators` format to Z Lab's layout.

`config.parse` checks the result.
"""

from typing import Any

from dflash_mlx.errors import DFlashError

ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
# Top-level keys with the same meaning in both layouts.
SHARED_KEYS = (
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
    """Whether a config.json is in the `speculators` format."""
    return raw.get("speculators_model_type") is not None


def in_zlab_layout(raw: dict[str, Any]) -> dict[str, Any]:
    """The config in Z Lab's layout. Raises DFlashError if it is no DFlash drafter's."""
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
    non_causal = raw.get("sliding_window_non_causal", kind == "dflash2")
    return {
        **layer,
        **{key: raw[key] for key in SHARED_KEYS if key in raw},
        "architectures": [ARCHITECTURES[kind]],
        # Index 0 is the embedding's output; in Z Lab's layout it is the first layer.
        "target_layer_ids": [number - 1 for number in ids],
        # `sliding_window_non_causal` is for sliding layers; full layers are never causal.
        "is_causal": False if non_causal else None,
    }


def refused(message: str) -> DFlashError:
    """The error for a config that is not a DFlash drafter's."""
    return DFlashError(message, hint="use a DFlash or DFlash 2 drafter")
