"""Serve the bundled target with llama.cpp's own server, for `serving_speed.py --other`.

    python llama_server.py TARGET PORT

Runs in an environment with the packages xllamacpp (llama.cpp's server, built) and gguf. The target
is written as GGUF in float32, which is what the other servers compute in, too.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path

import gguf  # pyright: ignore[reportMissingImports]
import numpy as np
import xllamacpp  # pyright: ignore[reportMissingImports]

SEQUENCES = 16
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def name_of(name: str) -> str:
    """The name in GGUF of a tensor of a Qwen3."""
    part = name.removesuffix(".weight")
    if part.startswith("model.layers."):
        _, _, layer, part = part.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.weight"
    return f"{NAMES[part]}.weight"


def tensors(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file of bfloat16 or float32, in float32."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    found: dict[str, np.ndarray] = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            half = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32)
            values = (half << 16).view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], np.float32)
        found[name] = values.reshape(entry["shape"])
    return found


def write_gguf(target: Path, file: Path) -> None:
    """Write a folder with a tied Qwen3 and its tokenizer as one file."""
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((target / "tokenizer_config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    special = {one["id"]: one for one in tokenizer["added_tokens"]}
    tokens = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    tokens |= {number: one["content"] for number, one in special.items()}
    kinds = {
        number: gguf.TokenType.CONTROL if one["special"] else gguf.TokenType.USER_DEFINED
        for number, one in special.items()
    }
    everything = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # digits one by one, then GPT-2's words
    writer.add_token_list([tokens.get(number, f"[unused {number}]") for number in everything])
    writer.add_token_types([kinds.get(number, gguf.TokenType.NORMAL) for number in everything])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])
    for name, values in tensors(target / "model.safetensors").items():
        writer.add_tensor(name_of(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    target, port = Path(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "target.gguf"
        write_gguf(target, file)
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.port = port
        params.n_parallel = SEQUENCES
        params.n_ctx = 4096 * SEQUENCES
        params.use_jinja = True
        params.cache_ram_mib = 0
        server = xllamacpp.Server(params)  # ends with its last reference
        print(f"listening at {server.listening_address}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
