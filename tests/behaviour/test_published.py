"""One published drafter of each layout of DFlash v1, at its true shapes: its checkpoint would load.

Files have a real header and no data (a hole of the right length), so that no memory is used. The
names and shapes are written down here from the published layout, not asked of the code under test.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.drafters.dflash.config import DraftConfig, parse
from dflash_mlx.drafters.dflash.load import check
from dflash_mlx.files.checkpoint import Checkpoint

SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


@dataclass(frozen=True)
class Row:
    """One drafter: layers, widths and heads, target layers and vocabulary, block, taps, mask."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    dim: int
    target_layers: int
    vocab: int
    block: int
    taps: tuple[int, ...]
    mask: int
    window: int | None = None  # all layers but the last are sliding
    bias: bool = False
    softcap: float | None = None
    top_level_block: bool = False
    rope: tuple[float, dict[str, Any] | None] = (1e6, None)


def spread(layers: int, count: int) -> tuple[int, ...]:
    """The taps that all DFlash v1 checkpoints have."""
    return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))


def row(name: str, shape: tuple[int, ...], target: tuple[int, int], taps: int, **more: Any) -> Row:
    """A v1 row: (layers, H, I, nH, nKV), (target layers, vocabulary), number of taps."""
    widths = dict(zip(("layers", "hidden", "inner", "heads", "kv_heads"), shape, strict=True))
    common: dict[str, Any] = {"block": 16, "mask": 248_070, "dim": 128, **widths, **more}
    layers, vocab = target
    return Row(name, target_layers=layers, vocab=vocab, taps=spread(layers, taps), **common)


QWEN3, QWEN35, LLAMA = 151_936, 248_320, 128_256
GEMMA, OSS, KIMI = 262_144, 201_088, 163_840
RETRAIN: dict[str, Any] = {"mask": 248_077, "window": 4096, "rope": (1e7, None)}
GPT_OSS: dict[str, Any] = {"dim": 64, "mask": 200_000, "bias": True, "rope": (150_000.0, YARN)}
SOFT: dict[str, Any] = {"mask": 4, "window": 2048, "softcap": 30.0}
MOE: dict[str, Any] = {"mask": 151_669}
FIRST: dict[str, Any] = {"mask": 151_669, "top_level_block": True}
ULTRA: dict[str, Any] = {"block": 10, "mask": 128_255}
WIDE_YARN = {**YARN, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0}
K2: dict[str, Any] = {"block": 8, "mask": 163_838, "rope": (50_000.0, WIDE_YARN)}
ROWS = (
    row("Qwen3-4B-DFlash-b16", (5, 2560, 9728, 32, 8), (36, QWEN3), 5, **FIRST),
    row("LLaMA3.1-8B-Instruct-DFlash-UltraChat", (5, 4096, 12288, 32, 8), (32, LLAMA), 5, **ULTRA),
    row("Qwen3-Coder-30B-A3B-DFlash", (8, 2048, 6144, 32, 4), (48, QWEN3), 5, **MOE),
    row("Qwen3.5-4B-DFlash, first", (5, 2560, 9728, 32, 8), (32, QWEN35), 5),
    row("Qwen3.5-122B-A10B-DFlash, first", (4, 3072, 9216, 32, 4), (48, QWEN35), 6, window=2048),
    row("Qwen3.5-4B-DFlash", (6, 2560, 9728, 32, 8), (32, QWEN35), 8, **RETRAIN),
    row("Qwen3.5-397B-A17B-DFlash", (6, 4096, 12288, 32, 8), (60, QWEN35), 8, **RETRAIN),
    row("gemma-4-26B-A4B-it-DFlash", (5, 2816, 5632, 32, 8), (30, GEMMA), 6, **SOFT),
    row("gpt-oss-20b-DFlash", (8, 2880, 7680, 64, 8), (24, OSS), 5, block=8, **GPT_OSS),
    row("Kimi-K2.5-DFlash", (6, 7168, 18432, 64, 8), (61, KIMI), 6, **K2),
)  # fmt: skip


def config_of(row: Row) -> dict[str, Any]:
    nested: dict[str, Any] = {"mask_token_id": row.mask, "target_layer_ids": list(row.taps)}
    kinds = [FULL] * row.layers
    if row.window:
        kinds[:-1] = [SLIDING] * (row.layers - 1)
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "gpt_oss" if row.bias else "qwen3",
        "hidden_size": row.hidden,
        "intermediate_size": row.inner,
        "num_hidden_layers": row.layers,
        "num_attention_heads": row.heads,
        "num_key_value_heads": row.kv_heads,
        "head_dim": row.dim,
        "vocab_size": row.vocab,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": row.bias,
        "max_position_embeddings": 40_960,
        "layer_types": kinds,
        "sliding_window": row.window,
        "use_sliding_window": row.window is not None,
        "num_target_layers": row.target_layers,
        "tie_word_embeddings": False,
        "dflash_config": nested,
    }
    base, scaling = row.rope
    if row.mask == 248_077:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": base}
    else:
        config |= {"rope_theta": base, "rope_scaling": scaling}
    (config if row.top_level_block else nested)["block_size"] = row.block
    if row.softcap:
        config["final_logit_softcapping"] = row.softcap
    return config


def tensors_of(row: Row) -> dict[str, list[int]]:
    """The names and shapes in its weight file, as in Z Lab's checkpoints."""
    width, queries, keys = row.hidden, row.heads * row.dim, row.kv_heads * row.dim
    found = {
        "fc.weight": [width, len(row.taps) * width],
        "hidden_norm.weight": [width],
        "norm.weight": [width],
    }
    for number in range(row.layers):
        layer = {
            "input_layernorm.weight": [width],
            "post_attention_layernorm.weight": [width],
            "self_attn.q_proj.weight": [queries, width],
            "self_attn.k_proj.weight": [keys, width],
            "self_attn.v_proj.weight": [keys, width],
            "self_attn.o_proj.weight": [width, queries],
            "self_attn.q_norm.weight": [row.dim],
            "self_attn.k_norm.weight": [row.dim],
            "mlp.gate_proj.weight": [row.inner, width],
            "mlp.up_proj.weight": [row.inner, width],
            "mlp.down_proj.weight": [width, row.inner],
        }
        if row.bias:
            for part, size in (("q", queries), ("k", keys), ("v", keys), ("o", width)):
                layer[f"self_attn.{part}_proj.bias"] = [size]
        found |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    return found


def write(folder: Path, config: dict[str, Any], tensors: dict[str, list[int]]) -> None:
    """A checkpoint whose weight file is a header and a hole."""
    (folder / "config.json").write_text(json.dumps(config))
    entries, end = {}, 0
    for name, shape in tensors.items():
        size = 2
        for side in shape:
            size *= side
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def look(folder: Path, row: Row, **target: Any) -> DraftConfig:
    """What loading looks at before it reads a weight."""
    own = {"hidden_size": row.hidden, "vocab_size": row.vocab}
    own |= {"num_hidden_layers": row.target_layers, **target}
    checkpoint = Checkpoint.read(folder, row.name)
    check(checkpoint, Checkpoint(folder, own, "the target"))
    return parse(checkpoint.config)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_it_would_load(row: Row, tmp_path: Path) -> None:
    """Config and all tensors are those that the engine wants."""
    write(tmp_path, config_of(row), tensors_of(row))
    config = look(tmp_path, row)
    assert config.block_size == row.block
    assert config.target_layer_ids == row.taps
    assert config.mask_token_id == row.mask
    assert config.sliding == tuple(
        bool(row.window) and n < row.layers - 1 for n in range(row.layers)
    )
    assert config.final_logit_softcapping == row.softcap
    assert config.rope_theta == row.rope[0]
    assert len(tensors_of(row)) == (15 if row.bias else 11) * row.layers + 3
