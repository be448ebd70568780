"""Files whose names begin with `._`, which macOS adds on foreign drives, are nowhere read."""

import shutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
from hub_server import tiny_repo

from dflash_mlx.engine.prefix_cache import disk
from dflash_mlx.errors import UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.folder import matching
from dflash_mlx.hub.cache import first_missing_file
from dflash_mlx.hub.download import plan
from dflash_mlx.hub.local import local_models
from dflash_mlx.pair import load

prompt = import_module("dflash_mlx.cli.prompt")

SIDECAR = bytes.fromhex("0005160700020000") + b"Mac OS X        " + bytes([0xFF] * 4072)


def add_sidecars(folder: Path) -> None:
    for path in [*folder.rglob("*")]:
        (path.parent / f"._{path.name}").write_bytes(SIDECAR)


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A folder pub/target and pub/draft as a Mac leaves it on an exFAT drive."""
    tiny.save_pair(tmp_path / "drive" / "pub", tiny.draft_settings)
    add_sidecars(tmp_path / "drive")
    return tmp_path / "drive"


def test_a_pair_loads(drive: Path) -> None:
    target, draft = drive / "pub" / "target", drive / "pub" / "draft"
    assert load(str(target), str(draft)).drafter is not None
    assert [first_missing_file(folder) for folder in (target, draft)] == ["", ""]
    checkpoint = Checkpoint.read(draft)
    assert [file.name for file in checkpoint.weight_files] == ["model.safetensors"]
    assert [line.split()[0] for line in disk.file_lines(target)] == [
        "model.safetensors",
        "config.json",
    ]


def test_a_pair_with_named_templates_loads(drive: Path) -> None:
    """transformers reads every template of that folder."""
    templates = drive / "pub" / "target" / "additional_chat_templates"
    templates.mkdir()
    (templates / "default.jinja").write_text("{{ messages[0].content }}")
    add_sidecars(templates)
    pair = load(str(templates.parent), no_draft=True)
    assert pair.template.write([{"role": "user", "content": "hi"}]) == "hi"


def test_models_of_a_drive_are_listed(drive: Path) -> None:
    """Complete; a sidecar of a GGUF file hides nothing below its folder."""
    shutil.copytree(drive / "pub" / "target", drive / "more" / "inner")
    for name in ("._x.gguf", "._config.json"):
        (drive / "more" / name).write_bytes(SIDECAR)
    found = {model.name: model.lacks for model in local_models([drive])}
    assert found == {"pub/target": "", "more/inner": ""}


def test_those_of_a_repository_are_not_downloaded(hub: Any) -> None:
    files = tiny_repo()
    hub.repos["owner/model"] = files | {"._model.safetensors": SIDECAR, "._x.json": SIDECAR}
    assert not [file.name for file in plan("owner/model").files if file.name.startswith("._")]


def test_patterns_of_a_prompt(tmp_path: Path) -> None:
    for name in ("a.txt", "._a.txt"):
        (tmp_path / name).write_text("x")
    found = [file for name in ("*", ".*", "") for file in files_of(f"{tmp_path}/{name}")]
    assert found == [str(tmp_path / "a.txt")] * 2
    assert not prompt.complete_path(f"{tmp_path}/.")


def files_of(name: str) -> list[str]:
    with suppress(UsageError):
        return prompt.matching_files(name)[0]
    return []


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "glob", fail)
    assert matching(tmp_path) == []
