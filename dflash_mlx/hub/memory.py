"""How much memory a pair needs, and whether this machine has it.

Counts weights and caches from file sizes and config.json; loads nothing. The rest (activations, the
interpreter, other programs) is what the share above `COMFORT` is for.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_mlx.drafter.config import load_config
from dflash_mlx.errors import DFlashError

from . import registry
from .registry import COMFORT, CONTEXT, Entry, snapshots_of

CPU_SHARE = 0.75  # of physical memory, about the share that Metal recommends on a Mac
SCALES = 0.5  # bits that a quantised weight's scale and bias add


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes for the target's weights, the caches of both models, and the drafter's weights."""

    weights: int
    caches: int
    draft: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.caches + self.draft


def working_set() -> int:
    """Bytes that models may take here: what Metal recommends, else 75 % of physical memory."""
    import mlx.core as mx

    limit = mx.device_info().get("max_recommended_working_set_size")
    if limit:
        return int(limit)
    return int(CPU_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def need(
    target: Path | Entry,
    draft: Path | None = None,
    context_tokens: int = CONTEXT,
    *,
    draft_bits: int | None = None,
    item_bytes: int = 2,
) -> Need:
    """What a pair needs once `context_tokens` are read.

    From two folders, or from a registry entry (then with its own drafter; unknown sizes count as
    none). `item_bytes` is what a number takes that is not quantised: 2, or 4 where MLX computes on
    the CPU. DFlashError when a config.json cannot be read.
    """
    wide = item_bytes / 2
    if isinstance(target, Entry):
        weights, own = target.target_bytes or 0, target.draft_bytes or 0
        caches = target.kv_bytes * context_tokens * wide
        caches += target.state_bytes + snapshots_of(target.state_bytes)
        weights *= 1 if target.quant not in ("", "bf16") else wide
    else:
        config = load_config(target)
        weights = weight_bytes(target, "model*.safetensors")
        weights *= 1 if "quantization" in config else wide
        caches, own = cache_bytes(config, context_tokens, item_bytes), 0
        caches += snapshot_bytes(config, item_bytes)
        if draft is not None:
            own = weight_bytes(draft, "*.safetensors")
            caches += cache_bytes(load_config(draft), context_tokens, item_bytes)
    own *= (draft_bits + SCALES) / 16 if draft_bits else wide
    return Need(round(weights), round(caches), round(own))


def weight_bytes(folder: Path, pattern: str) -> int:
    """Bytes of a folder's weight files."""
    return sum(file.stat().st_size for file in folder.glob(pattern))


def cache_bytes(config: dict[str, Any], tokens: int, item_bytes: int = 2) -> int:
    """Bytes of the caches that a config.json asks for after `tokens` tokens.

    Sliding layers hold no more than their window, recurrent layers a state that does not grow.
    """
    config = text_part(config)
    window = config.get("sliding_window") or tokens
    bytes_ = 0
    for kind in layer_kinds(config):
        if kind == "linear_attention":
            bytes_ += state_bytes(config, item_bytes)
        else:
            rows = min(window, tokens) if kind == "sliding_attention" else tokens
            bytes_ += rows * row_width(config, kind) * item_bytes
    return bytes_


def snapshot_bytes(config: dict[str, Any], item_bytes: int = 2) -> int:
    """At most what a conversation's snapshots take: states and windows at the ends of turns."""
    config = text_part(config)
    kinds, window = layer_kinds(config), config.get("sliding_window")
    one = kinds.count("linear_attention") * state_bytes(config, item_bytes)
    if window:
        width = row_width(config, "sliding_attention") * item_bytes
        one += kinds.count("sliding_attention") * window * width
    return snapshots_of(one)


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's settings, on top of those around them."""
    return {**config, **(config.get("text_config") or {})}


def layer_kinds(config: dict[str, Any]) -> list[str]:
    """The kind of every layer that has a cache of its own."""
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if not kinds:
        every = config.get("full_attention_interval") or 1
        kinds = [
            "linear_attention" if number % every else "full_attention"
            for number in range(1, layers + 1)
        ]
    return list(kinds[: layers - (config.get("num_kv_shared_layers") or 0)])


def row_width(config: dict[str, Any], kind: str) -> int:
    """How many numbers a layer with rows keeps of each token."""
    if rank := config.get("kv_lora_rank"):  # keys and values in one
        return rank + config["qk_rope_head_dim"] + 2 * (config.get("index_head_dim") or 0)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    if kind == "full_attention":  # Gemma 4 has wider heads there, and fewer
        head_dim = config.get("global_head_dim") or head_dim
        if config.get("attention_k_eq_v"):
            kv_heads = config.get("num_global_key_value_heads") or kv_heads
    return 2 * kv_heads * head_dim


def state_bytes(config: dict[str, Any], item_bytes: int) -> int:
    """A recurrent layer's state, which is always float32, and its convolution's last rows."""
    values = config.get("linear_num_value_heads") or 0
    keys = config.get("linear_num_key_heads") or values
    key_dim = config.get("linear_key_head_dim") or 0
    value_dim = config.get("linear_value_head_dim") or 0
    rows = (config.get("linear_conv_kernel_dim") or 4) - 1
    return 4 * values * key_dim * value_dim + rows * item_bytes * (
        2 * keys * key_dim + values * value_dim
    )


def judge(total: Need | int, limit: int) -> Literal["ok", "warn", "refuse"]:
    """Whether a need fits into a limit: easily (up to 75 %), just so (up to 100 %), or not."""
    size = total.total if isinstance(total, Need) else total
    if size > limit:
        return "refuse"
    return "warn" if size > COMFORT * limit else "ok"


def check_fits(wanted: Need, limit: int, name: str) -> str | None:
    """A warning when a pair fills more than 75 % of the limit, else None.

    DFlashError above 100 %, with a smaller pair in its hint.
    """
    verdict = judge(wanted, limit)
    if verdict == "ok":
        return None
    share = f"{wanted.total / 1e9:.1f} GB of the {limit / 1e9:.1f} GB that models may take here"
    if verdict == "warn":
        return f"'{name}' needs {share}: close other programs if it gets slow"
    smaller = registry.suits(limit, 1 << 62)
    fits = smaller is not None and (smaller.memory_bytes or 0) < wanted.total
    other = f"`-m {smaller.target}`" if smaller and fits else "the bundled pair (no --model)"
    raise DFlashError(
        f"'{name}' needs {share}.",
        hint=f"{other} fits this machine; --force loads it all the same",
    )
