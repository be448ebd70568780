"""Which pair answers when none is named, and whether it fits the memory."""

import json
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import typer
from typer.testing import CliRunner

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import registry
from dflash_mlx.hub import resolve as hub_resolve
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.kernels.dispatch import item_bytes
from dflash_mlx.models import memory

chat = import_module("dflash_mlx.cli.chat.start")
loading = import_module("dflash_mlx.cli.loading")
options = import_module("dflash_mlx.cli.options")
resolve = import_module("dflash_mlx.cli.resolve")
output = import_module("dflash_mlx.cli.terminal.output")
transcript = import_module("dflash_mlx.cli.chat.transcript")

NOTHING = options.ModelOptions()


class Studio:
    """LM Studio's folder of a machine with `memory` bytes; `say` has the notes of a choice."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path):
        self.folder, self.memory, self.said = folder, 12 * 10**9, list[str]()
        self.root = Path(os.environ["HOME"]) / ".lmstudio" / "models"
        patch.setattr(memory, "physical_memory", lambda: self.memory)

    def add(self, name: str, width: int = 48) -> Path:
        tiny.save_pair(self.folder, tiny.draft_settings, intermediate_size=width)
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        return (self.folder / "target").rename(self.root / name)

    def choice(self, **models: Any) -> Any:
        """The options that `dflash chat` would take; without a model for the bundled pair."""
        out = output.Output()
        out.note = out.warn = self.said.append
        return loading.choose_pair(replace(NOTHING, **models), out, interactive=True)

    def taken(self) -> str | None:
        model = self.choice().model
        return None if model is None else Path(model).relative_to(self.root).as_posix()


@pytest.fixture
def studio(monkeypatch: pytest.MonkeyPatch, hub: Any, tmp_path: Path) -> Studio:
    return Studio(monkeypatch, tmp_path / "pair")


def test_the_largest_that_fits_in_half_of_the_memory_is_taken(studio: Studio) -> None:
    """On Linux as on a Mac; it is named, with the way to the demo pair. Nothing here: bundled."""
    assert studio.taken() is None
    assert studio.said == []
    studio.add("me/Small-1B")
    studio.add("me/Another-1B")
    large = studio.add("me/Large-3B", width=480)
    assert studio.taken() == "me/Large-3B"
    assert str(large) in studio.said[-1]
    assert "-m bundled" in studio.said[-1]
    needed = tiny.memory_of(large, item_bytes=item_bytes()).total
    studio.memory = 2 * needed
    assert studio.taken() == "me/Large-3B"
    studio.memory -= 2
    assert studio.taken() == "me/Another-1B"  # as large as the other: by name
    studio.memory //= 4
    assert studio.taken() is None


def test_what_cannot_chat_is_not_taken(studio: Studio) -> None:
    """A base model, an incomplete one, and one in a format that mlx-lm does not read."""
    studio.add("me/Chat-1B")
    base = studio.add("me/Base-3B", width=480)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (base / "tokenizer_config.json").write_text(json.dumps(settings))
    (studio.add("me/Part-3B", width=480) / "tokenizer.json").unlink()
    other = studio.add("me/Other-3B-bnb-4bit", width=480) / "config.json"
    config = json.loads(other.read_text())
    other.write_text(json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes"}}))
    assert studio.taken() == "me/Chat-1B"


def test_a_drafter_is_used_only_if_it_is_here(studio: Studio) -> None:
    """Nothing is downloaded unasked."""
    studio.add("mlx-community/Qwen3-4B-4bit")
    assert studio.choice().draft == "lookup"
    assert studio.choice(no_draft=True).draft is None


def test_a_drafter_that_does_not_fit_is_left_out(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its target answers with copies, and a sentence says why."""
    studio.add("me/Chat-1B")
    monkeypatch.setattr(hub_resolve, "known_drafter", lambda target: str(bundled("draft")))
    assert studio.choice().draft == "lookup"
    assert "answers without its drafter: " in studio.said[0]
    assert " expects a target with hidden size " in studio.said[0]
    studio.said.clear()
    assert studio.choice(no_draft=True).draft is None
    assert len(studio.said) == 1


def test_too_large_is_refused_before_the_download(studio: Studio, hub: Any) -> None:
    """A known target, also if the size of its drafter is not known."""
    entry = registry.find("mlx-community/Qwen3-235B-A22B-4bit")
    assert entry is not None
    assert entry.memory_bytes is None
    large = replace(NOTHING, model="qwen3:235b")
    with pytest.raises(DFlashError, match="'mlx-community/Qwen3-235B-A22B-4bit' needs 13"):
        loading.with_known_target(large, output.Output())
    forced = loading.with_known_target(replace(large, force=True), output.Output())
    assert forced.model == entry.target
    assert hub.requests == 0


def pick(saved: Any = None, *, demo: bool = False, **models: Any) -> Any:
    """The pair of a chat, with these options on the command line and no other."""
    out = output.Output()
    command = typer.main.get_command(import_module("dflash_mlx.cli.app").app)
    context = SimpleNamespace(params=models, meta={}, command=command.commands["chat"])  # type: ignore
    sources = dict.fromkeys(models, options.ValueSource.FLAG)
    given = options.Options(context, sources).changed(**models)

    def choose(given: Any) -> Any:
        return chat.choose_target(given, saved, out, demo=demo, interactive=False)

    return resolve.resolve(given, out, choose=choose).model


def test_a_saved_chat_brings_its_pair() -> None:
    """Unless another one is asked for."""
    saved = transcript.Chat(model="a/b", draft="a/d")
    assert (pick(saved).model, pick(saved).draft) == ("a/b", "a/d")
    assert pick(saved, model="c/d").model == "c/d"
    assert (pick(saved, no_draft=True).model, pick(saved, no_draft=True).draft) == ("a/b", None)
    assert pick(transcript.Chat(model="bundled", draft="bundled")).model is None
    chosen = pick(model="bundled", draft="a/b")  # another drafter for the bundled target
    assert (chosen.model, chosen.draft) == (None, "a/b")


def test_demo(cli_app: typer.Typer) -> None:
    """The bundled pair, whatever the config file says; not together with --model or --draft."""
    assert pick(demo=True).model is None
    for name in ("model", "draft"):
        result = CliRunner().invoke(cli_app, ["chat", "--demo", f"--{name}", "a/b"], input="x")
        assert result.exit_code == 2
        assert f"--demo and --{name} name different models." in result.stderr


def test_memory(monkeypatch: pytest.MonkeyPatch, cli_app: typer.Typer) -> None:
    """Too big is refused with a way out, nearly too big is warned of; --force loads it and warns.

    Once, and through the one output: nothing else says it.
    """
    told: list[str] = []
    monkeypatch.setattr(memory, "working_set", lambda: 30_000_000)
    out = output.Output()
    out.warn = lambda *texts: told.extend(texts)
    with pytest.raises(DFlashError, match="needs") as found:
        loading.fetch_pair(NOTHING, out)
    assert "--force" in found.value.hint
    loading.fetch_pair(replace(NOTHING, force=True), out)
    assert len(told) == 1
    assert "it can be very slow" in told.pop()
    monkeypatch.setattr(memory, "working_set", lambda: 60_000_000)
    loading.fetch_pair(NOTHING, out)
    assert "close other programs" in told[0]
    monkeypatch.setattr(memory, "working_set", lambda: 30_000_000)
    refused = CliRunner().invoke(cli_app, ["generate", "hi"])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: 'bundled' needs")
    loaded = CliRunner().invoke(cli_app, ["generate", "--force", "--max-tokens", "2", "hi"])
    assert loaded.exit_code == 0
    assert loaded.stderr.count("needs") == 1
    assert "needs" not in loaded.stdout
