"""The target families: which mlx-lm model classes can be targets, and where each keeps its parts.

What a family needs beyond the table is a function that the table names. Knows no loaded model.
"""

from dataclasses import dataclass
from typing import Any

from .gated_delta import Project, project_joined, project_separate


@dataclass(frozen=True, slots=True)
class Family:
    """Where an mlx-lm model class keeps its parts; paths are dotted attribute names.

    `body` has the layers and the token table, `outer` the head and the arguments. `embed_scale` is
    the body's attribute that token embeddings are multiplied by, `project` how its Gated DeltaNet
    layers project their input.
    """

    body: str = "model"
    outer: str = ""
    embed_scale: str = ""
    project: Project | None = None


INNER, OUTER = "language_model.model", "language_model"
FAMILIES: dict[str, Family] = {
    "deepseek_v3": Family(),
    "gemma4": Family(INNER, OUTER, embed_scale="embed_scale"),
    "gemma4_text": Family(embed_scale="embed_scale"),
    "gemma4_unified": Family(INNER, OUTER, embed_scale="embed_scale"),
    "glm4_moe": Family(),
    "glm_moe_dsa": Family(),
    "gpt_oss": Family(),
    "kimi_k2": Family(),
    "kimi_k25": Family(INNER, OUTER),
    "llama": Family(),
    "minimax": Family(),
    "minimax_m2": Family(),
    "muse_glimmer": Family(),  # normalises embeddings; its drafters take them from the table
    "qwen3": Family(),
    "qwen3_5": Family(INNER, OUTER, project=project_separate),
    "qwen3_5_moe": Family(INNER, OUTER, project=project_separate),
    "qwen3_moe": Family(),
    "qwen3_next": Family(project=project_joined),
}


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with the settings of its language model, if it has them apart, on top."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    return {**config, **inner, "model_type": config.get("model_type")}
