"""Meta's own DFlash drafter of Muse Glimmer, in the layout of Z Lab's.

It is a DFlash drafter with other names: transformers calls it `MuseGlimmerAssistantModel` (5.15,
models/muse_glimmer_assistant). All its layers slide, and a block is seen whole. Its config.json
lacks the target's numbers; they are those that DFlash 2 drafters of the same target name.
"""

from typing import Any

ARCHITECTURE = "MuseGlimmerAssistantModel"
TARGET = {  # Muse-Glimmer-30B: the head's factor is (6656 / 256) ** -0.5
    "vocab_size": 202_048,
    "output_multiplier": 0.19611613513818404,
    "final_logit_softcapping": 20.0,
}
NAMES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}


def is_assistant(raw: dict[str, Any]) -> bool:
    """Whether a config.json belongs to such a drafter."""
    return ARCHITECTURE in (raw.get("architectures") or [])


def in_zlab_layout(raw: dict[str, Any]) -> dict[str, Any]:
    """The config with Z Lab's keys; what it says itself wins."""
    return {**TARGET, **raw, "architectures": ["DFlashDraftModel"], "is_causal": False}
