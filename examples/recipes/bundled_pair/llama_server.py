"""Serve the bundled target with llama.cpp's own server, for `serving_speed.py --other`.

    python llama_server.py TARGET PORT

Runs in an environment with the packages xllamacpp (llama.cpp's server, built), gguf and
safetensors. The target, in float32 as for the other servers, is written as GGUF.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path

import gguf  # pyright: ignore[reportMissingImports]
import xllamacpp  # pyright: ignore[reportMissingImports]
from safetensors.numpy import load_file

SEQUENCES = 16


def write_gguf(target: Path, file: Path) -> None:
    """Write a folder with a tied Qwen3 in float32 and its tokenizer as one file."""
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
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, values in load_file(target / "model.safetensors").items():
        known = names.get_name(name, try_suffixes=(".weight",))
        assert known is not None
        writer.add_tensor(known, values)
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
