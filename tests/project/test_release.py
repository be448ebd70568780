"""What a release has beside the wheel: a man page and completions, made from the commands."""

import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def page() -> str:
    return import_module("man_page").man_page("2026-01-30")


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


def flags(command: Any) -> set[str]:
    shown = [p for p in command.params if p.param_type_name == "option"]
    return {flag for option in shown for flag in (*option.opts, *option.secondary_opts)}


def test_the_man_page_has_every_command_and_flag(page: str, cli_app: typer.Typer) -> None:
    parts = page.replace(r"\-", "-").split('\n.SS "')
    sections = {part.split('"', 1)[0].partition(" [")[0]: part for part in parts[1:]}
    for words, command in commands(typer.main.get_command(cli_app)):
        if words and not hasattr(command, "commands"):
            part = sections.pop(" ".join(("dflash", *words)))
            names = [line[3:] for line in part.splitlines() if line.startswith(".B ")]
            listed = {word.rstrip(",") for name in names for word in name.split()}
            assert flags(command) <= listed, words
    assert sections == {}


@pytest.mark.parametrize(
    "program",
    [
        ["man", "--warnings", "--local-file", "-"],
        ["groff", "-man", "-ww", "-z"],
        ["mandoc", "-T", "lint", "-W", "warning"],
    ],
    ids=lambda program: program[0],
)
def test_man_programs_read_the_page(page: str, program: list[str]) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not here")
    done = subprocess.run(program, input=page, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if program[0] == "mandoc":  # which reports on stdout
        assert done.stdout == ""


@pytest.mark.parametrize("text", [".ignored", "'ignored", r"C:\new", "-x `y` ~/z ^", "τ × 2"])
def test_text_that_roff_would_read_as_commands(text: str) -> None:
    """It is printed as it is."""
    if shutil.which("groff") is None:
        pytest.skip("groff is not here")
    source = "\n".join([".TH T 1", ".PP", *import_module("man_page").lines(text), ""])
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-P-c"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
    )
    assert text in done.stdout


SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_parse(shell: str, cli_app: typer.Typer, tmp_path: Path) -> None:
    script = CliRunner().invoke(
        cli_app, env={"_DFLASH_COMPLETE": f"source_{shell}"}, prog_name="dflash"
    )
    assert "_DFLASH_COMPLETE" in script.output
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    (tmp_path / "script").write_text(script.output)
    done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def completed(cli_app: typer.Typer, *words: str) -> set[str]:
    """What the last word can become, as bash is told."""
    asks = {"_DFLASH_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words))}
    asks["COMP_WORDS"] = "\n".join(("dflash", *words))
    return set(CliRunner().invoke(cli_app, env=asks, prog_name="dflash").output.splitlines())


def test_completions_have_every_command_and_flag(cli_app: typer.Typer) -> None:
    for words, command in commands(typer.main.get_command(cli_app)):
        assert flags(command) <= completed(cli_app, *words, "-"), words
        inner = set(getattr(command, "commands", {}))
        assert inner <= completed(cli_app, *words, ""), words
