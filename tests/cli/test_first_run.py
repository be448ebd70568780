"""Which pair answers when none is named, and whether it fits the memory."""

from dataclasses import fields, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub import cache as hub_cache
from dflash_mlx.hub import registry
from dflash_mlx.models import memory
from dflash_mlx.options import GenerationOptions, declared

chat = import_module("dflash_mlx.cli.chat.start")
loading = import_module("dflash_mlx.cli.loading")
options = import_module("dflash_mlx.cli.options")
resolve = import_module("dflash_mlx.cli.resolve")
output = import_module("dflash_mlx.cli.terminal.output")
transcript = import_module("dflash_mlx.cli.chat.transcript")

NOTHING = options.ModelOptions()
SMALL, LARGE = "mlx-community/Qwen3-4B-4bit", "Qwen/Qwen3-8B"


class Mac:
    def __init__(self, patch: pytest.MonkeyPatch):
        self.limit, self.cached = 12e9, set[str]()
        patch.setattr(loading, "has_metal", lambda: True)
        patch.setattr(memory, "working_set", lambda: int(self.limit))
        patch.setattr(hub_cache, "cached_state", lambda r: "yes" if r in self.cached else "no")

    def choice(self, models: Any = NOTHING, interactive: bool = True) -> str | None:
        """The target that `dflash chat` would take; None is the bundled pair."""
        return loading.choose_pair(models, output.Output(), interactive=interactive).model


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Mac:
    return Mac(monkeypatch)


def test_not_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "has_metal", lambda: False)
    assert loading.choose_pair(NOTHING, output.Output(), interactive=True) is NOTHING


def test_what_is_downloaded_is_taken(mac: Mac) -> None:
    """Without a question, when both parts are there and fit."""
    mac.cached = {SMALL}
    assert mac.choice() is None
    drafter = registry.drafter_of(SMALL)
    assert drafter is not None
    mac.cached = {SMALL, drafter}
    assert mac.choice() == SMALL
    assert mac.choice(interactive=False) == SMALL
    mac.limit = 2e9
    assert mac.choice(interactive=False) is None


def pick(saved: Any = None, *, demo: bool = False, **models: Any) -> Any:
    """The pair of a chat, with these options on the command line and no other."""
    out = output.Output()
    values = values_of(**models)

    def choose(values: Any) -> Any:
        return chat.choose_target(values, saved, out, demo=demo, interactive=False)

    return resolve.resolve(values, out, choose=choose).model


def values_of(**given: Any) -> Any:
    command = SimpleNamespace(params=[], meta={})
    plain = {one.name: one.command_default for one in declared(GenerationOptions)}
    plain |= {one.name: one.default for one in fields(options.ModelOptions)}
    values = {name: options.OptionValue(value) for name, value in plain.items()}
    flag = options.Origin.FLAG
    values |= {name: options.OptionValue(value, flag) for name, value in given.items()}
    return options.OptionValues(command, values)


def test_a_saved_chat_brings_its_pair() -> None:
    """Unless another one is asked for."""
    saved = transcript.Chat(model="a/b", draft="a/d")
    assert (pick(saved).model, pick(saved).draft) == ("a/b", "a/d")
    assert pick(saved, model="c/d").model == "c/d"
    assert (pick(saved, no_draft=True).model, pick(saved, no_draft=True).draft) == ("a/b", None)
    assert pick(transcript.Chat(model="bundled", draft="bundled")).model is None


def test_demo() -> None:
    """The bundled pair, whatever the config file says; not together with --model or --draft."""
    assert pick(demo=True).model is None
    for name in ("model", "draft"):
        with pytest.raises(UsageError, match=f"--demo and --{name}"):
            pick(demo=True, **{name: "a/b"})


def test_another_drafter_for_the_bundled_target() -> None:
    chosen = pick(model="bundled", draft="a/b")
    assert (chosen.model, chosen.draft) == (None, "a/b")


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
