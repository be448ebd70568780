"""What a config.json is of: a DFlash drafter, an EAGLE-3 head, or neither."""

from typing import Any

V1, V2 = "DFlashDraftModel", "DFlash2DraftModel"
ARCHITECTURES = (V1, V2)  # supported values of `architectures`
ASSISTANT = "MuseGlimmerAssistantModel"  # Meta's own DFlash drafter of Muse Glimmer
EAGLE3 = "LlamaForCausalLMEagle3"  # what most EAGLE-3 heads name as their architecture


def in_speculators(raw: dict[str, Any]) -> bool:
    """Whether a config.json is in the `speculators` format."""
    return raw.get("speculators_model_type") is not None


def is_assistant(raw: dict[str, Any]) -> bool:
    """Whether a config.json belongs to Meta's drafter of Muse Glimmer."""
    return ASSISTANT in (raw.get("architectures") or [])


def is_eagle(raw: dict[str, Any]) -> bool:
    """Whether a config.json belongs to an EAGLE-3 head.

    Those that the authors trained name a plain Llama, and tell by the size of their vocabulary.
    """
    if in_speculators(raw):
        return raw["speculators_model_type"] == "eagle3"
    named = any("eagle3" in name.lower() for name in raw.get("architectures") or [])
    return named or ("draft_vocab_size" in raw and raw.get("model_type") == "llama")


def is_drafter(raw: dict[str, Any]) -> bool:
    """Whether a config.json belongs to something that can only draft."""
    architectures = raw.get("architectures") or []
    return (
        "dflash_config" in raw
        or in_speculators(raw)
        or is_assistant(raw)
        or any("Draft" in name for name in architectures)
        or is_eagle(raw)
    )
