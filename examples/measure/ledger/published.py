"""Published pairs without their weights: the config.json of a target and of its drafter."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
BESIDE = {"rms_norm_eps": 1e-6, "max_position_embeddings": 262_144}  # in every config
LAYERS = {"s": "sliding_attention", "f": "full_attention"}


@dataclass(frozen=True, slots=True)
class Published:
    """The shapes of the pair `name`; `mode` is mlx-lm's quantisation of the target, or "none"."""

    name: str
    target: Mapping[str, Any]
    drafter: Mapping[str, Any]
    mode: str = "affine"
    bits: int = 4
    group_size: int = 64


@cache
def sheet() -> dict[str, Any]:
    """The tables of published.toml, which explains their keys."""
    text = files("ledger").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def published(name: str, bits: int = 4) -> Published:
    """The pair of the target `name`, quantised or, with 16 bits, not."""
    entry, target = sheet()[name], target_of(name)
    mode = "none" if bits == 16 else entry.get("mode", "affine")
    label = f"{name}-{bits}bit" if mode == "affine" else name
    return Published(label, target, drafter_of(entry["drafter"], target), mode, bits)


def target_of(name: str) -> dict[str, Any]:
    """A target's config."""
    entry = sheet()[name]
    like = target_of(entry["like"]) if "like" in entry else {}
    found = {**like, **BESIDE, **sizes_of(entry), **entry.get("config", {})}
    if period := entry.get("layers"):
        kinds = [LAYERS[kind] for kind in period]
        found["layer_types"] = kinds * (found["num_hidden_layers"] // len(kinds))
    return found


def drafter_of(entry: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """A drafter's config."""
    sizes, config = sizes_of(entry), entry.get("config", {})
    layers, taps = target["num_hidden_layers"], entry["taps"]
    spread = [round(1 + place * (layers - 4) / (taps - 1)) for place in range(taps)]
    sliding = "sliding_window" in config
    kinds = [LAYERS["s" if sliding else "f"]] * (sizes["num_hidden_layers"] - 1) + [LAYERS["f"]]
    block = {"mask_token_id": 4, "target_layer_ids": spread, "block_size": entry["block"]}
    return {
        "architectures": ["DFlashDraftModel"],
        "rope_theta": 1e6,
        **BESIDE,
        **sizes,
        "vocab_size": target["vocab_size"],
        "num_target_layers": layers,
        "layer_types": kinds,
        "use_sliding_window": sliding,
        "dflash_config": block,
        **config,
    }


def sizes_of(entry: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that targets and drafters share."""
    return dict(zip(SIZES, entry["shape"], strict=True))


# Those of tables, and of tests of every pair.
NAMES = "Qwen3-8B Qwen3-Coder-30B-A3B Qwen3.5-9B gemma-4-26B-A4B gpt-oss-20b"
PAIRS = tuple(map(published, NAMES.split()))
LIQUID = published("LFM2.5-2.6B"), published("LFM2.5-8B-A1B")
