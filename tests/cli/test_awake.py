"""A Mac does not sleep while a command runs for long, answers, or downloads."""

import os
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from dflash_mlx.errors import DFlashError


@pytest.fixture
def caffeinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake of macOS's program; the file gets its arguments, and its own id."""
    module = import_module("dflash_mlx.cli.awake")
    monkeypatch.setattr(module, "sys", SimpleNamespace(platform="darwin"))
    program = tmp_path / "bin" / "caffeinate"
    program.parent.mkdir()
    # A name appears with its content, so that nobody reads half of it.
    program.write_text(
        f'#!/bin/sh\ncd "{tmp_path}"\necho "$@" $$ > new\n/bin/mv new started\n'
        "while :; do /bin/sleep 0.05; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return tmp_path / "started"


def alive(number: str) -> bool:
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    return True


def running(started: Path) -> bool:
    """Whether the newest one runs; one from before, while models were looked for, has ended."""
    return started.exists() and alive(started.read_text().split()[-1])


@pytest.mark.parametrize(
    ("command", "loading"),
    [
        (["serve", "--port", "0"], "serve.load_pair"),
        (["bench"], "bench.command.load_pair"),
        (["train", "prompts.jsonl", "--out", "trained"], "train.open_target"),
        (["generate", "--raw", "hello"], "backend.local.LocalBackend.stream"),
    ],
)
def test_long_commands_keep_a_mac_awake(
    cli_app: typer.Typer,
    caffeinate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    loading: str,
) -> None:
    """`caffeinate` watches this process, and ends with the command, also after an error."""
    seen = []

    def stop(*_: object, **__: object) -> None:
        end = time.monotonic() + 60
        while not running(caffeinate) and time.monotonic() < end:
            time.sleep(0.01)
        *arguments, number = caffeinate.read_text().split()
        seen.append((arguments, alive(number), number))
        raise DFlashError("enough.", hint="none")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('"hello"\n')
    monkeypatch.setattr(f"dflash_mlx.cli.{loading}", stop)
    result = CliRunner().invoke(cli_app, command)
    assert "enough." in result.output
    ((arguments, was_alive, number),) = seen
    assert arguments == ["-i", "-w", str(os.getpid())]
    assert was_alive
    assert not alive(number)


@pytest.mark.parametrize(("platform", "path"), [("linux", None), ("darwin", "")])
def test_without_caffeinate(
    caffeinate: Path, monkeypatch: pytest.MonkeyPatch, platform: str, path: str | None
) -> None:
    module = import_module("dflash_mlx.cli.awake")
    monkeypatch.setattr(module, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(module.subprocess, "Popen", None)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    with module.awake():
        pass
    assert not caffeinate.exists()
