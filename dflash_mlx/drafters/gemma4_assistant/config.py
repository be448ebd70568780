"""The config.json of a Gemma 4 assistant."""

from copy import deepcopy
from dataclasses import dataclass

from mlx_lm.models.gemma4_text import ModelArgs

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint

# What no assistant has, whatever mlx-lm's defaults are.
PLAIN = {
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": False,
}


@dataclass(frozen=True, slots=True)
class AssistantConfig:
    """`text`: mlx-lm's arguments of its layers. `backbone_hidden_size`: the target's hidden size.

    `clusters`: into how many clusters its head sorts the tokens; the logits of the `taken`
    likeliest are computed. 0: of all tokens.
    """

    text: ModelArgs
    backbone_hidden_size: int
    clusters: int
    taken: int


def parse(checkpoint: Checkpoint) -> AssistantConfig:
    """The config of an assistant's checkpoint.

    Raises DFlashError if something is missing, and for a head that is not the embedding.
    """
    raw = checkpoint.config
    if not raw.get("tie_word_embeddings", True):
        raise DFlashError(
            f"the Gemma assistant in '{checkpoint.path}' has a head of its own.",
            hint="use one of Google's, or --draft lookup",
        )
    try:
        text = deepcopy(raw["text_config"])
        layers = text["num_hidden_layers"]
        return AssistantConfig(
            ModelArgs.from_dict({**text, **PLAIN, "num_kv_shared_layers": layers}),
            raw["backbone_hidden_size"],
            raw.get("num_centroids", 2048) if raw.get("use_ordered_embeddings") else 0,
            raw.get("centroid_intermediate_top_k", 32),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DFlashError(
            f"the config of the Gemma assistant in '{checkpoint.path}' cannot be used ({error}).",
            hint="download the drafter again",
        ) from error
