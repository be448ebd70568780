"""A drafter has 8 bits beside a quantised target and those it was published in beside others."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from mlx import nn
from mlx_lm.utils import load_model
from typer.testing import CliRunner

from dflash_mlx import bench
from dflash_mlx.errors import UsageError
from dflash_mlx.hub.registry import find
from dflash_mlx.models.precision import bits_of
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair, load

CASE = tiny.GOLDEN / "qwen3_full"
TARGET, DRAFT = CASE / "target", CASE / "draft"


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden target in 8 bits, as mlx-lm writes it."""
    folder = tmp_path_factory.mktemp("quantised") / "target"
    model, config = load_model(TARGET)
    nn.quantize(model, group_size=32, bits=8)
    tiny.save_model(folder, model, {**config, "quantization": {"group_size": 32, "bits": 8}})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, folder / name)
    return folder


def bits(pair: Pair) -> int:
    assert pair.drafter is not None
    return bits_of(pair.drafter.model)


@pytest.mark.parametrize(("asked", "plain", "beside"), [(None, 0, 8), (0, 0, 0), (4, 4, 4)])
def test_bits_of_a_loaded_drafter(
    quantised: Path, asked: int | None, plain: int, beside: int
) -> None:
    """`load` and `with_drafter` take what is asked for, and decide where nothing is."""
    assert bits(load(TARGET, DRAFT, draft_bits=asked)) == plain
    pair = load(quantised, DRAFT, draft_bits=asked)
    assert bits(pair) == beside
    assert bits(tiny.with_drafter(pair, DRAFT, draft_bits=asked)) == beside
    with pytest.raises(UsageError, match="draft_bits cannot be 5"):
        tiny.with_drafter(pair, DRAFT, draft_bits=5)


def test_memory_counts_the_bits(quantised: Path) -> None:
    """The estimate of folders and that of the registry follow the same default."""
    published = tiny.memory_of(TARGET, DRAFT).draft
    assert tiny.memory_of(quantised, DRAFT).draft == round(published * 8.5 / 16)
    assert tiny.memory_of(quantised, DRAFT, draft_bits=0).draft == published
    entry = find("mlx-community/Qwen3-8B-4bit")
    assert entry is not None
    assert entry.draft_bytes is not None
    published = entry.memory(draft_bits=0)
    assert published is not None
    assert entry.memory() == published - entry.draft_bytes + round(entry.draft_bytes * 8.5 / 16)


def test_a_benchmark_says_the_bits(quantised: Path) -> None:
    """Results of an as-published drafter go on in files of versions that knew no default."""
    schedule = bench.Schedule(modes=bench.parse_modes("dflash"), temperatures=(0.0,))
    for folder, said in ((TARGET, None), (quantised, 8)):
        assert bench.facts_of(load(folder, DRAFT), schedule)["pair"]["draft_bits"] == said


@pytest.mark.parametrize(("flag", "used"), [([], 8), (["none"], 0), (["0"], 0), (["4"], 4)])
def test_the_command_line_says_the_bits(
    quantised: Path, cli_app: Any, flag: list[str], used: int
) -> None:
    """`--draft-bits` takes 4, 8, 0 and none, and `--json` says what is used."""
    pair = ["-m", str(quantised), "-d", str(DRAFT), *(["--draft-bits"] * bool(flag)), *flag]
    result = CliRunner().invoke(
        cli_app, ["generate", *pair, "--json", "--raw", "--max-tokens", "4", "the"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["draft_bits"] == used


@pytest.mark.parametrize(
    ("asked", "words"), [(None, f"drafter {DRAFT} in 8 bits"), (0, f"{DRAFT} ·")]
)
def test_the_header_says_the_bits(quantised: Path, asked: int | None, words: str) -> None:
    """A chat's header names them after the drafter, and nothing where it is as published."""
    header: Callable[..., list[str]] = import_module("dflash_mlx.cli.chat.pages").header_lines
    pair = load(quantised, DRAFT, draft_bits=asked)
    backend = import_module("dflash_mlx.cli.backend.local").LocalBackend(pair)
    settings = GenerationOptions(mode="auto")
    dialogue = SimpleNamespace(info=backend.info, settings=settings)
    assert words in header(dialogue, 1.0)[0]
