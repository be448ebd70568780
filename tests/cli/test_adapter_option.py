"""`--adapter`: in commands, in the config file, and what is said of a folder that is none."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from adapters import save_adapter

import dflash_mlx
from dflash_mlx.errors import DFlashError


def write_peft(folder: Path, base: Path) -> None:
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), {"x": mx.zeros(1)})
    (folder / "adapters.safetensors").unlink()
    config = {"peft_type": "LORA", "base_model_name_or_path": "owner/base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def write_short(folder: Path, base: Path) -> None:
    file = folder / "adapters.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def write_other(folder: Path, base: Path) -> None:
    file = str(folder / "adapters.safetensors")
    weights: Any = mx.load(file)
    mx.save_safetensors(file, {name: mx.zeros((9, 9)) for name in weights})


BROKEN = {
    "no folder": (lambda folder, base: folder.rename(base / "away"), "there is no adapter folder"),
    "no config": (
        lambda folder, base: (folder / "adapter_config.json").unlink(),
        "there is no adapter_config.json in",
    ),
    "no weights": (
        lambda folder, base: (folder / "adapters.safetensors").unlink(),
        "there is no adapters.safetensors in",
    ),
    "no JSON": (
        lambda folder, base: (folder / "adapter_config.json").write_text("{"),
        "is not valid JSON",
    ),
    "no rank": (
        lambda folder, base: (folder / "adapter_config.json").write_text("{}"),
        "has no 'num_layers'",
    ),
    "short": (write_short, "is damaged or incomplete"),
    "another model's": (write_other, r"does not fit the model '\S*target' \(.*shape"),
    "PEFT": (write_peft, "is a PEFT adapter, which mlx-lm does not read"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_adapters_are_one_sentence(case: str, tmp_path: Path, run: Any) -> None:
    """In Python and in a command."""
    target, draft = tiny.save_pair(tmp_path, tiny.draft_settings)
    adapter = save_adapter(tmp_path / "adapter", target)
    change, message = BROKEN[case]
    change(adapter, tmp_path)
    with pytest.raises(DFlashError, match=message) as raised:
        dflash_mlx.load(target, draft, adapter=adapter)
    assert raised.value.message.endswith(".")
    assert "\n" not in raised.value.message
    found = run("generate", "-m", str(target), "-d", str(draft), "--adapter", str(adapter), "x")
    assert (found.exit_code, found.stdout) == (1, "")
    assert len(found.stderr.splitlines()) == 2


def test_an_adapter_is_no_model(tmp_path: Path, run: Any) -> None:
    target, _ = tiny.save_pair(tmp_path, tiny.draft_settings)
    adapter = save_adapter(tmp_path / "adapter", target, base="owner/base")
    found = run("generate", "-m", str(adapter), "x")
    assert found.exit_code == 1
    assert f"'{adapter}' is an adapter for owner/base, not a model." in found.stderr
    assert f"--model owner/base and --adapter {adapter}" in found.stderr
    write_peft(adapter, tmp_path)
    found = run("generate", "-m", str(adapter), "x")
    assert "is a PEFT adapter for owner/base, not a model." in found.stderr


def test_commands_and_the_config_file_take_it(tmp_path: Path, run: Any, config: Any) -> None:
    """Each answers as mlx-lm does; a model's table in the config file names its own adapter."""
    target, draft = tiny.save_pair(tmp_path, tiny.draft_settings)
    adapter = save_adapter(tmp_path / "adapter", target)
    words = "--no-draft --raw --json --max-tokens 9 a".split()
    plain = ("generate", "-m", str(target), *words)
    base = json.loads(run(*plain).stdout)
    adapted = json.loads(run(*plain, "--adapter", str(adapter)).stdout)
    assert (base["adapter"], adapted["adapter"]) == (None, str(adapter))
    assert base["tokens"] != adapted["tokens"]
    drafted = ("generate", "-m", str(target), "-d", str(draft), *words[1:], "--adapter")
    assert json.loads(run(*drafted, str(adapter)).stdout)["tokens"] == adapted["tokens"]
    config(f"[models.'{target}']\nadapter = '{adapter}'\n")
    assert json.loads(run(*plain).stdout)["tokens"] == adapted["tokens"]


def test_a_chat_says_it(tmp_path: Path) -> None:
    target, _ = tiny.save_pair(tmp_path, tiny.draft_settings)
    adapter = save_adapter(tmp_path / "my-adapter", target)
    pair = dflash_mlx.load(target, no_draft=True, adapter=adapter)
    backend = import_module("dflash_mlx.cli.backend.local").LocalBackend(pair)
    header = backend.info.describe(dflash_mlx.GenerationOptions(), header=True)
    assert header.startswith("target with my-adapter · ")
