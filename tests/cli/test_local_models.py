"""Models outside the Hub's cache: LM Studio's, and those of --models and of the config file."""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
from recorded_chat import chat_options

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import local, registry
from dflash_mlx.hub.resolve import pair_names

actions = import_module("dflash_mlx.cli.chat.actions")

KNOWN = "mlx-community/Qwen3-4B-4bit"


@pytest.fixture
def studio(hub: Any, tmp_path: Path) -> Path:
    """LM Studio's folder with a known target, another target, and a GGUF file."""
    folder = Path(os.environ["HOME"]) / ".lmstudio" / "models"
    for name in (KNOWN, "lmstudio-community/Qwen2.5-7B-Instruct-MLX-4bit"):
        tiny.save_pair(tmp_path / "pair", tiny.draft_settings)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pair" / "target").rename(folder / name)
    gguf = folder / "bartowski" / "Stories-3B-GGUF"
    gguf.mkdir(parents=True)
    (gguf / "Stories-3B-Q4_K_M.gguf").write_bytes(b"GGUF")
    return folder


def listed(run: Any, *arguments: str) -> dict[str, dict[str, Any]]:
    result = run("models", "list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return {row["target"]: row for row in reversed(json.loads(result.stdout))}


def write_config(text: str) -> None:
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_list_has_them(studio: Path, run: Any) -> None:
    """A known target in its own row; others below; GGUF is marked."""
    rows = listed(run)
    assert (rows[KNOWN]["cached"], rows[KNOWN]["path"]) == ("folder", str(studio / KNOWN))
    other = rows["lmstudio-community/Qwen2.5-7B-Instruct-MLX-4bit"]
    assert (other["cached"], other["fits"], other["supported"]) == ("folder", "yes", True)
    gguf = rows["bartowski/Stories-3B-GGUF"]
    assert (gguf["gguf"], gguf["supported"]) == (True, False)
    lines = [line.split("\t") for line in run("models", "list").stdout.splitlines()]
    assert ["bartowski/Stories-3B-GGUF", "GGUF"] in [[line[0], line[-1]] for line in lines]
    assert KNOWN in [line[0] for line in lines[:4]]


def test_a_gguf_file_in_the_hubs_cache_is_marked(hub: Any, cache: Path, run: Any) -> None:
    folder = cache / "models--unsloth--Qwen3-8B-GGUF"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "0").write_bytes(b"GGUF" * 10)
    (folder / "snapshots" / "1").mkdir(parents=True)
    (folder / "snapshots" / "1" / "Qwen3-8B-Q4_K_M.gguf").symlink_to(folder / "blobs" / "0")
    row = listed(run)["unsloth/Qwen3-8B-GGUF"]
    assert (row["gguf"], row["target_bytes"]) == (True, 40)


@pytest.mark.parametrize("by", ["flag", "config file", "variable"])
def test_folders_of_the_users_own(
    hub: Any, tmp_path: Path, run: Any, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.save_pair(tmp_path / "own" / "Mine-1B", tiny.draft_settings)
    arguments = []
    if by == "flag":
        arguments = ["--models", str(tmp_path / "own")]
    elif by == "variable":
        monkeypatch.setenv("DFLASH_MODELS", str(tmp_path / "own"))
    else:
        write_config(f'model-folders = ["{tmp_path / "own"}"]\n')
    assert listed(run, *arguments)["Mine-1B/target"]["cached"] == "folder"
    result = run("generate", "-m", "Mine-1B/target", "--max-tokens", "2", *arguments, "hi")
    assert result.exit_code == 0, result.output


def test_a_folder_that_is_not_there(hub: Any, tmp_path: Path, run: Any) -> None:
    """An error for the flag; a warning for the config file, whose disk may be unplugged."""
    missing = str(tmp_path / "no")
    result = run("generate", "--models", missing, "--max-tokens", "2", "hi")
    assert result.exit_code == 2
    assert f"the folder '{missing}' of --model-folders does not exist." in result.stderr
    write_config(f'model-folders = "{missing}"\n')
    result = run("generate", "--max-tokens", "2", "hi")
    assert result.exit_code == 0
    assert f"the folder '{missing}' of 'model-folders' in" in result.stderr


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("qwen3:4b", KNOWN),
        (KNOWN, KNOWN),
        (KNOWN.lower(), KNOWN),
        ("qwen2.5:7b", "lmstudio-community/Qwen2.5-7B-Instruct-MLX-4bit"),
        ("Qwen2.5-7B-Instruct-MLX-4bit", "lmstudio-community/Qwen2.5-7B-Instruct-MLX-4bit"),
    ],
)
def test_names_mean_what_is_here(studio: Path, name: str, found: str) -> None:
    """Before, these names were downloaded, or unknown."""
    assert local.find_model(name) == str(studio / found)


def test_names_of_what_is_not_here(studio: Path) -> None:
    """Known ones stay what they were; others may be Hub ids; a GGUF file says why it cannot run."""
    assert local.find_model("qwen3:8b") == "mlx-community/Qwen3-8B-4bit"
    assert local.find_model("owner/model") is None
    assert local.find_model("qwen2.5:99b") is None
    with pytest.raises(DFlashError, match="is a GGUF file"):
        local.find_model("stories-3b")


def test_a_folder_is_not_passed_over_for_a_download(studio: Path, run: Any) -> None:
    """A config without weights: it is said, also in the list, and the Hub is not asked."""
    folder = studio / "mlx-community" / "gemma-3-4b-it-4bit"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gemma3"}')
    for command in (["generate", "hi"], ["doctor"]):
        result = run(*command, "-m", "gemma3:4b")
        assert result.exit_code == 1
        assert f"'{folder}' is not complete" in result.stderr
        assert "dflash models pull mlx-community/gemma-3-4b-it-4bit" in result.stderr
    rows = json.loads(run("models", "list", "--json").stdout)
    row = next(row for row in rows if row["path"] == str(folder))
    assert (row["cached"], row["supported"]) == ("folder", False)
    assert "is not complete" in row["reason"]


def test_two_of_a_name(studio: Path, tmp_path: Path) -> None:
    """A guess would take another model than the one that was meant."""
    tiny.save_pair(tmp_path / "pair", tiny.draft_settings)
    (tmp_path / "pair" / "target").rename(tmp_path / "Qwen2.5-7B-Instruct-8bit")
    with pytest.raises(DFlashError, match=r"may be .* or .*8bit"):
        local.find_model("qwen2.5:7b", [tmp_path])
    assert local.find_model("qwen2.5-7b-8bit", [tmp_path])


def test_a_known_target_in_a_folder_has_its_drafter(studio: Path) -> None:
    """LM Studio's folders end with the Hub id."""
    assert pair_names(str(studio / KNOWN), None).draft == registry.drafter_of(KNOWN)


def test_model_completes_their_names(studio: Path) -> None:
    state = type("State", (), {"options": chat_options()})()
    names = actions.known_targets(state)
    assert "lmstudio-community/Qwen2.5-7B-Instruct-MLX-4bit" in names[:2]
    assert "Qwen/Qwen3-4B" in names
    assert len(names) == len(set(names))


def test_near_names_are_those_of_models_here_too(tmp_path: Path, hub: Any) -> None:
    folder = Path(os.environ["HOME"]) / ".lmstudio" / "models" / "me" / "Zephyr-Story-1B"
    tiny.save_pair(tmp_path / "pair", tiny.draft_settings)
    folder.parent.mkdir(parents=True)
    (tmp_path / "pair" / "target").rename(folder)
    assert local.did_you_mean("zephyr-stori-1b") == "did you mean me/Zephyr-Story-1B?"
