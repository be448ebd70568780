"""Which weight files of a folder are read, and what is said of those that cannot be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from checkpoint_edits import refused

from dflash_mlx.engine.prefix_cache import disk
from dflash_mlx.files.checkpoint import WEIGHT_INDEX, Checkpoint
from dflash_mlx.hub.cache import first_missing_file
from dflash_mlx.hub.local import local_models
from dflash_mlx.pair import load

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save_pair(tmp_path / "pub", tiny.draft_settings)[0]


def weights_of(folder: Path) -> dict[str, mx.array]:
    weights: Any = mx.load(str(folder / WEIGHTS))
    mx.eval(weights)
    return weights


def split(folder: Path, *names: str) -> dict[str, str]:
    """Divide the weights among files with these names; return each tensor's file."""
    weights = weights_of(folder)
    (folder / WEIGHTS).unlink()
    files = {tensor: names[n % len(names)] for n, tensor in enumerate(sorted(weights))}
    for name in names:
        tensors = {tensor: weights[tensor] for tensor, file in files.items() if file == name}
        mx.save_safetensors(str(folder / name), tensors)
    return files


def write_index(folder: Path, files: dict[str, str]) -> None:
    (folder / WEIGHT_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def add_stray(folder: Path, name: str) -> None:
    zeros = {tensor: mx.zeros_like(value) for tensor, value in weights_of(folder).items()}
    mx.save_safetensors(str(folder / name), zeros)


def logits(folder: Path) -> mx.array:
    target = load(str(folder), no_draft=True).target
    return target.forward(mx.arange(8)[None], None)[0]


@pytest.mark.parametrize(
    "names",
    [
        (WEIGHTS,),
        ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("weights.00.safetensors", "weights.01.safetensors"),
    ],
)
def test_those_of_the_index_are_read(folder: Path, names: tuple[str, ...]) -> None:
    """And no others, whatever they are called; a link that is gone is none of them."""
    wanted = logits(folder)
    add_stray(folder, "model-00003-of-00003.safetensors")
    write_index(folder, split(folder, *names))
    (folder / "model-old.safetensors").symlink_to("gone")
    assert mx.array_equal(logits(folder), wanted)
    checkpoint = Checkpoint.read(folder)
    assert [file.name for file in checkpoint.weight_files] == [*names]
    assert disk.file_lines(folder)
    size = sum((folder / name).stat().st_size for name in names)
    assert tiny.memory_of(folder, None).weights == size


@pytest.mark.parametrize(
    "names",
    [
        ("model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"),
        ("model_a.safetensors",),
    ],
)
def test_an_index_of_another_model(folder: Path, names: tuple[str, ...]) -> None:
    """None of its files is here: then the others are read."""
    wanted = logits(folder)
    split(folder, *names)
    write_index(folder, {"a": "model-00001-of-00009.safetensors"})
    assert mx.array_equal(logits(folder), wanted)
    assert first_missing_file(folder) == ""


def test_one_tensor_in_two_files(folder: Path) -> None:
    add_stray(folder, "model-00001-of-00002.safetensors")
    error = refused("both have the tensor", str(folder), no_draft=True)
    assert WEIGHTS in error.message
    assert "model-00001-of-00002.safetensors" in error.message
    (found,) = local_models([folder.parent])
    assert "both have the tensor" in found.lacks


def test_of_a_drafter(folder: Path) -> None:
    """The same rule: refused without an index, and read by it."""
    draft = folder.parent / "draft"
    add_stray(draft, "older.safetensors")
    refused("both have the tensor", str(folder), str(draft))
    write_index(draft, dict.fromkeys(weights_of(draft), WEIGHTS))
    assert load(str(folder), str(draft)).drafter is not None


def without_shard(folder: Path) -> str:
    split(folder, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    (folder / "model-00002-of-00002.safetensors").unlink()
    return "model-00002-of-00002.safetensors' is missing"


def without_shard_of_the_index(folder: Path) -> str:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    write_index(folder, {name: names[n % 2] for n, name in enumerate(weights_of(folder))})
    return without_shard(folder)


def gone(name: str) -> Callable[[Path], str]:
    def change(folder: Path) -> str:
        (folder / name).unlink()
        (folder / name).symlink_to("../blobs/gone")
        return f"{name}' is a link to a file that is gone"

    return change


def pointer(name: str) -> Callable[[Path], str]:
    def change(folder: Path) -> str:
        (folder / name).write_bytes(POINTER)
        return f"{name}' is a Git LFS pointer"

    return change


@pytest.mark.parametrize(
    "change",
    [
        without_shard_of_the_index,
        *(kind(name) for kind in (gone, pointer) for name in (WEIGHTS, "tokenizer_config.json")),
        pointer("tokenizer.json"),
    ],
)
def test_what_cannot_be_read_is_named(folder: Path, change: Callable[[Path], str]) -> None:
    """In one sentence, by loading and by the list of models."""
    fault = change(folder)
    refused(fault, str(folder), no_draft=True)
    (found,) = local_models([folder.parent])
    assert fault in found.lacks


def test_a_number_that_is_missing(folder: Path) -> None:
    """Without an index; only where the tensors that are here are not enough."""
    fault = without_shard(folder)
    refused(fault, str(folder), no_draft=True)


def test_a_damaged_index(folder: Path) -> None:
    (folder / WEIGHT_INDEX).write_text('{"weight_map": [1]}')
    refused("has no weight_map", str(folder), no_draft=True)
    assert first_missing_file(folder) == WEIGHT_INDEX


def test_a_tensor_that_is_missing_is_named(folder: Path) -> None:
    weights = weights_of(folder)
    del weights["model.norm.weight"]
    mx.save_safetensors(str(folder / WEIGHTS), weights)
    refused(r"Missing 1 parameters: model\.norm\.weight\)", str(folder), no_draft=True)
