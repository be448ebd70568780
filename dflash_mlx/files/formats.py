"""The format of a checkpoint, from its config.json."""

import re
from typing import Any, Literal

Format = Literal[
    "dflash", "dflash2", "dspark", "eagle3", "gemma4_assistant", "mtp", "language model"
]

V1, V2 = "DFlashDraftModel", "DFlash2DraftModel"
# DeepSpec's own two, SpecForge's, and Liquid AI's: DFlash with the heads of DSpark.
QWEN3_DSPARK, GEMMA4_DSPARK = "Qwen3DSparkModel", "Gemma4DSparkModel"
DSPARK = (QWEN3_DSPARK, GEMMA4_DSPARK, "DSparkDraftModel", "Lfm2DSparkDraftModel")
ARCHITECTURES = (V1, V2, *DSPARK)  # supported values of `architectures`
ASSISTANT = "MuseGlimmerAssistantModel"  # Meta's own DFlash drafter of Muse Glimmer
EAGLE3 = "LlamaForCausalLMEagle3"  # what most EAGLE-3 heads name as their architecture
MTP_TENSOR = re.compile(r"^(?:model\.)?(?:language_model\.)?mtp\.")  # in a whole model's files
TRAINED_MTP = "qwen3_mtp"  # type of the heads that `dflash train` makes; their config has sizes


def format_of(config: dict[str, Any]) -> Format:
    """The format of a config.json; "dflash" also for drafters of an unknown architecture.

    "mtp" is a folder with an MTP head alone. Other folders may hold one, too: their tensors tell.
    """
    if is_mtp(config):
        return "mtp"
    if is_gemma_assistant(config):
        return "gemma4_assistant"
    if is_eagle(config):
        return "eagle3"
    if is_dspark(config):
        return "dspark"
    if is_dflash(config):
        return "dflash2" if is_dflash2(config) else "dflash"
    return "language model"


def is_drafter(config: dict[str, Any]) -> bool:
    """Whether a config.json belongs to a model that can only draft."""
    return format_of(config) != "language model"


def in_speculators(config: dict[str, Any]) -> bool:
    return config.get("speculators_model_type") is not None


def is_assistant(config: dict[str, Any]) -> bool:
    return ASSISTANT in (config.get("architectures") or [])


def is_eagle(config: dict[str, Any]) -> bool:
    """Whether a config.json belongs to an EAGLE-3 head.

    The authors' own heads name a plain Llama as architecture; only the key `draft_vocab_size`
    tells them from a language model.
    """
    if in_speculators(config):
        return config["speculators_model_type"] == "eagle3"
    is_named = any("eagle3" in name.lower() for name in config.get("architectures") or [])
    return is_named or ("draft_vocab_size" in config and config.get("model_type") == "llama")


def is_mtp(config: dict[str, Any]) -> bool:
    return str(config.get("model_type")).endswith("_mtp")


def is_gemma_assistant(config: dict[str, Any]) -> bool:
    return config.get("model_type") in ("gemma4_assistant", "gemma4_unified_assistant")


def is_dflash2(config: dict[str, Any]) -> bool:
    if config.get("speculators_model_type") == "dflash2":
        return True
    named = V2 in (config.get("architectures") or [])
    return named or dflash_entry(config, "projector_type") == "dflash2"


def is_dspark(config: dict[str, Any]) -> bool:
    """Whether a drafter's config.json belongs to DSpark, or to DeepSpec's DFlash.

    A plain DFlash drafter that names a Markov head is one, too.
    """
    if in_speculators(config):
        return config["speculators_model_type"] == "dspark"
    architectures = config.get("architectures") or []
    if any("dspark" in name.lower() for name in architectures):
        return True
    if V1 not in architectures and "dflash_config" not in config:
        return False
    projector = dflash_entry(config, "projector_type")
    return projector == "dspark" or bool(dflash_entry(config, "markov_rank"))


def dflash_entry(config: dict[str, Any], key: str) -> Any:
    """An entry of `dflash_config`, or else of the whole config; None without one."""
    nested = config.get("dflash_config")
    own = nested.get(key) if isinstance(nested, dict) else None
    return config.get(key) if own is None else own


def is_dflash(config: dict[str, Any]) -> bool:
    """Whether a config.json belongs to a DFlash drafter, or to one of an unknown architecture."""
    return (
        "dflash_config" in config
        or in_speculators(config)
        or is_assistant(config)
        or any("Draft" in name for name in config.get("architectures") or [])
    )
