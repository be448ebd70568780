"""The model families that can be targets, by the `model_type` of their config.json."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Family:
    """Where an mlx-lm model class keeps its parts; paths are dotted attribute names.

    `body` has the layers and the token table, `outer` the head and the arguments. `norm` is the
    body's attribute with the final norm, `embed_scale` the one that token embeddings are multiplied
    by. `project`: whether Gated DeltaNet layers project their input by joined or by separate
    matrices; empty where there are none. `short_conv`: whether layers without attention are short
    convolutions. `sinks`: whether attention has sink logits. `latent`: whether it is MLA, whose
    cache holds latents instead of keys and values.
    """

    body: str = "model"
    outer: str = ""
    norm: str = "norm"
    embed_scale: str = ""
    project: Literal["", "joined", "separate"] = ""
    short_conv: bool = False
    sinks: bool = False
    latent: bool = False

    @property
    def quantises_kv(self) -> bool:
        """Whether mlx-lm can quantise KV caches: not with sinks, and not with latents."""
        return not (self.sinks or self.latent)


INNER = "language_model.model"
OUTER = "language_model"
FAMILIES: dict[str, Family] = {
    "deepseek_v3": Family(latent=True),
    "gemma4": Family(INNER, OUTER, embed_scale="embed_scale"),
    "gemma4_text": Family(embed_scale="embed_scale"),
    "gemma4_unified": Family(INNER, OUTER, embed_scale="embed_scale"),
    "glm4_moe": Family(),
    "glm_moe_dsa": Family(latent=True),
    "gpt_oss": Family(sinks=True),
    "kimi_k2": Family(latent=True),
    "kimi_k25": Family(INNER, OUTER, latent=True),
    "lfm2": Family(norm="embedding_norm", short_conv=True),
    "lfm2_moe": Family(norm="embedding_norm", short_conv=True),
    "llama": Family(),
    "minimax": Family(),
    "minimax_m2": Family(),
    "muse_glimmer": Family(),  # normalises embeddings; its drafters take them from the table
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_5": Family(INNER, OUTER, project="separate"),
    "qwen3_5_moe": Family(INNER, OUTER, project="separate"),
    "qwen3_moe": Family(),
    "qwen3_next": Family(project="joined"),
}
