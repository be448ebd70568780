"""`--help` at 80 columns, and the pages of the guide from the installed package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

GUIDE = Path(__file__).parents[2] / "examples" / "guide"


def test_pages(run):
    """All are listed with their titles, and each is the file itself in a pipe."""
    lines = run("help").stdout.splitlines()
    assert len(lines) == len(list(GUIDE.glob("*.md")))
    for line in lines:
        name, title = line.split(maxsplit=1)
        text = (GUIDE / f"{name.replace('-', '_')}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {title}\n")
        assert run("help", name).stdout == text


@pytest.mark.parametrize("topic", ["Prefix", "prefix_cache", "prefix-cache"])
def test_the_start_of_a_name_is_enough(run, topic):
    assert run("help", topic).stdout.startswith("# ")


@pytest.mark.parametrize(
    ("topic", "hint"),
    [("chta", "did you mean 'chat'?"), ("", "`dflash help` lists them"), ("nothing", "lists them")],
)
def test_no_such_page(run, topic, hint):
    result = run("help", topic)
    assert (result.exit_code, result.stdout) == (2, "")
    assert hint in result.stderr


def test_without_a_command_it_says_where_to_begin(run):
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "dflash chat" in result.stderr
    assert "dflash help" in result.stderr


def command_lines(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_lines(inner, (*path, name))


def test_help_fits_and_is_complete(run, cli_app):
    """Nothing is wider than 80 columns or cut off, and every option is under a heading."""
    for words in command_lines(typer.main.get_command(cli_app)):
        text = run(*words, "--help").stdout
        assert max(map(len, text.splitlines())) <= 80, words
        assert not [line for line in text.splitlines() if line.endswith("...") and "]" not in line]
        if len(words) == 1 and "Output:" in text:
            assert "\nOptions:" not in text, words


def test_help_begins_with_examples_and_ends_in_the_guide(run, cli_app):
    """The examples are commands of this program, and the pages exist."""
    assert "-m, --model ID " in run("chat", "--help").stdout
    for name in ("chat", "generate", "serve", "bench", "train"):
        text = run(name, "--help").stdout
        examples = [line for line in text.split("\n\n")[2].splitlines() if "dflash" in line]
        assert 2 <= len(examples) <= 3
        assert f"dflash {name}" in examples[0]
        assert f"`dflash help {name}`" in " ".join(text.split())
        assert run("help", name).exit_code == 0
