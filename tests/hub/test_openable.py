"""What mlx-lm cannot open is refused by name before its weights come, and what it can is not."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from hub_server import fetched, tiny_repo
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import MODEL_REMAPPING, _get_classes, load_model
from typer.testing import CliRunner

from dflash_mlx.errors import DFlashError
from dflash_mlx.files import model_types
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub import download
from dflash_mlx.hub.cache import cached_bytes
from dflash_mlx.hub.openable import lacks, why_not
from dflash_mlx.hub.registry import conversion_of

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FAMILIES = ("qwen3", "llama", "gpt_oss", "minimax", "deepseek_v3", "glm_moe_dsa", "kimi_k25")


def stored(method: str, kind: str = "qwen3", **more: Any) -> dict[str, Any]:
    return {"model_type": kind, "quantization_config": {"quant_method": method, **more}}


def test_every_module_of_mlx_lm_is_known() -> None:
    """Without an import: the modules with a model, by their own names and by all aliases."""
    folder = model_types.package() / "models"
    for file in folder.glob("*.py"):
        if file.stem == "olmo":  # its import ends the program
            continue
        module = import_module(f"mlx_lm.models.{file.stem}")
        usable = hasattr(module, "Model") and hasattr(module, "ModelArgs")
        assert model_types.is_known(file.stem) == usable, file.stem
    assert model_types.aliases() == MODEL_REMAPPING
    for kind, module in MODEL_REMAPPING.items():
        assert model_types.is_known(kind)
        assert model_types.module_of(kind) == module


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"model_type": "bert"}, "type 'bert', an encoder"),
        ({"model_type": "xlm-roberta"}, "an encoder"),
        ({"model_type": "t5"}, "type 't5', which mlx-lm"),
        ({}, "names no type"),
        ({"model_type": "llama", "model_file": "own.py"}, "its own model code, which is never run"),
        (
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "own.Model"}},
            "code of its own (type 'own'), which is never run",
        ),
        (stored("bitsandbytes", load_in_4bit=True), "is stored as bitsandbytes"),
        (stored("fp8"), "is stored as FP8"),
        ({"model_type": "gemma3", "text_config": stored("fp8", "gemma3_text")}, "as FP8"),
        (
            stored("fp8", "mistral3") | {"text_config": {"model_type": "ministral3"}},
            "is stored as FP8",
        ),
        (stored("modelopt", quant_algo="FP8"), "ModelOpt (FP8)"),
        (stored("modelopt", quant_algo="NVFP4"), "ModelOpt (NVFP4)"),
        (stored("compressed-tensors", format="float-quantized"), "(float-quantized)"),
        (stored("compressed-tensors", format="pack-quantized"), "(pack-quantized)"),
        (stored("awq", bits=8), "AWQ in 8 bits"),
        (stored("gptq", bits=3), "GPTQ in 3 bits"),
    ],
)
def test_what_is_refused(config: dict[str, Any], part: str) -> None:
    assert part in lacks(config)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mistral"},
        {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "own.Model"}},
        stored("awq", bits=4),
        stored("gptq", bits=4),
        stored("mxfp4", "gpt_oss"),
        stored("fp8", "deepseek_v3"),
        stored("fp8", "kimi_k2"),
        stored("fp8", "minimax_m2"),
        stored("fp8", "mistral3") | {"text_config": {"model_type": "mistral4"}},
        stored("compressed-tensors", "kimi_k25", format="pack-quantized"),
        stored("modelopt", "muse_spark", quant_algo="NVFP4"),
        stored("fp8") | {"quantization": {"bits": 4, "group_size": 64}},  # converted by mlx-lm
    ],
)
def test_what_is_not_refused(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")  # one of them has Metal kernels
    assert lacks(config) == ""


@pytest.mark.skipif(sys.platform == "darwin", reason="it runs on a Mac")
def test_models_of_metal_kernels_are_refused_elsewhere() -> None:
    assert "runs on a Mac only" in lacks({"model_type": "bitnet"})


@pytest.mark.parametrize("family", FAMILIES)
def test_fp8_is_refused_where_mlx_lm_fails(family: str, tmp_path: Path) -> None:
    """One matrix in FP8 with the scales of its blocks, as published: read right, or refused."""
    config = tiny.config_of(family) | {"quantization_config": FP8}
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(dict(config)))
    weights: dict[str, Any] = dict(tree_flatten(model.parameters()))
    name = next(name for name in weights if name.endswith("o_proj.weight"))
    packed = mx.to_fp8(weights[name])
    weights |= {name: packed, f"{name}_scale_inv": mx.full((1, 1), 2.0)}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    (tmp_path / "config.json").write_text(json.dumps(config))
    reason = lacks(config)
    if reason:
        with pytest.raises(ValueError, match="parameters not in model"):
            load_model(tmp_path)
        return
    loaded: nn.Module = load_model(tmp_path)[0]
    found = dict(tree_flatten(loaded.parameters()))[name]
    assert mx.array_equal(found, 2 * mx.from_fp8(packed, mx.float32))


def test_ministrals_fp8_would_be_read_wrong() -> None:
    """mlx-lm multiplies the bytes: without the refusal such a model would answer nonsense."""
    module: Any = import_module("mlx_lm.models.ministral3")
    stub = type("Stub", (), {"args": type("Args", (), {"tie_word_embeddings": False})})
    weights = {"w.weight": mx.to_fp8(mx.array([1.0])), "w.weight_scale_inv": mx.array(1.0)}
    assert module.Model.sanitize(stub, weights)["w.weight"].item() != 1.0


def test_group_indices_of_gptq(tmp_path: Path) -> None:
    """The config does not tell: mlx-lm refuses these by their tensors, and so do we."""
    (tmp_path / "config.json").write_text(json.dumps(stored("gptq", bits=4)))
    assert why_not(Checkpoint.read(tmp_path)) is None
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"a.g_idx": mx.zeros(2)})
    error = why_not(Checkpoint.read(tmp_path))
    assert error
    assert "GPTQ with group indices" in error.message


def test_settings_in_a_file_of_their_own(tmp_path: Path) -> None:
    """As NVIDIA's older ModelOpt exports have them."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    settings = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
    error = why_not(Checkpoint.read(tmp_path))
    assert error
    assert "ModelOpt (FP8)" in error.message


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"config.json": {"model_type": "bert"}}, "an encoder"),
        ({"config.json": stored("bitsandbytes")}, "bitsandbytes"),
        (
            {
                "config.json": {"model_type": "llama"},
                "hf_quant_config.json": {"producer": {"name": "modelopt"}},
            },
            "ModelOpt",
        ),
        ({"config.json": {"model_type": "orthrus", "architectures": ["OrthrusLM"]}}, "Orthrus"),
    ],
)
def test_nothing_is_downloaded_to_be_refused(hub: Any, files: dict[str, Any], part: str) -> None:
    """Of a repository on the Hub only these small files are asked for, and nothing is kept."""
    repo = "owner/model"
    hub.repos[repo] = tiny_repo() | {k: json.dumps(v).encode() for k, v in files.items()}
    for act in (download.plan, download.download):
        with pytest.raises(DFlashError, match=part):
            act(repo)
    assert {asked.name for asked in hub.asked} <= files.keys()
    assert cached_bytes(repo) == 0


@pytest.mark.parametrize("command", [("doctor",), ("generate", "hi")])
def test_a_folder_is_refused_by_name(
    command: tuple[str, ...], cli_app: Any, tmp_path: Path
) -> None:
    """Before its weights are read, and where a check of its files alone would find no fault."""
    target, _ = tiny.save_pair(tmp_path, tiny.draft_settings)
    folder = target.rename(tmp_path / "Qwen3-8B-FP8")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | stored("fp8")))
    result = CliRunner().invoke(cli_app, [*command, "-m", str(folder)])
    assert result.exit_code == 1
    output = " ".join(result.output.split())
    assert "is stored as FP8, which mlx-lm does not read" in output
    assert "take mlx-community/Qwen3-8B-4bit" in output


def test_gptq_is_told_by_the_header_of_its_weights(hub: Any) -> None:
    """A few bytes of the file: the config is the same for both forms."""
    repo = "owner/model"
    files = tiny_repo() | {"config.json": json.dumps(stored("gptq", bits=4)).encode()}
    hub.repos[repo] = files
    assert download.plan(repo).missing_bytes > 0
    header = b'{"a.g_idx":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    hub.repos[repo] = files | {
        "model.safetensors": len(header).to_bytes(8, "little") + header + bytes(4)
    }
    with pytest.raises(DFlashError, match="GPTQ with group indices"):
        download.plan(repo)
    assert fetched(hub).count("model.safetensors") <= 4
    assert cached_bytes(repo) == 0


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Qwen/Qwen3-8B-FP8", "mlx-community/Qwen3-8B-4bit"),
        ("unsloth/Qwen3-4B-unsloth-bnb-4bit", "mlx-community/Qwen3-4B-4bit"),
        ("/models/unsloth/Qwen3-4B-bnb-4bit", "mlx-community/Qwen3-4B-4bit"),
        ("owner/Other-7B-FP8", None),
        ("moonshotai/Kimi-K2.5", None),
    ],
)
def test_the_repository_that_works_is_named(name: str, other: str | None) -> None:
    assert conversion_of(name) == other
