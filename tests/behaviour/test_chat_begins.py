"""How a chat begins: with a first prompt, with standard input, or where the last one ended."""

import json
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from terminal import NUMBERS, SLOWED, Terminal, environment

from dflash_mlx.errors import DFlashError, UsageError

start = import_module("dflash_mlx.cli.chat.start")
transcript = import_module("dflash_mlx.cli.chat.transcript")
Chat, Turn = transcript.Chat, transcript.Turn


@pytest.mark.parametrize(
    ("words", "flags", "name", "prompt"),
    [
        ([], {}, None, ""),
        (["a prompt"], {}, None, "a prompt"),
        ([], {"resume": True}, "last", ""),
        (["first"], {"resume": True}, "first", ""),
        (["first", "and on"], {"resume": True}, "first", "and on"),
        (["first"], {"latest": True}, "last", "first"),
    ],
)
def test_what_the_words_are(
    words: list[str],
    flags: dict[str, bool],
    name: str | None,
    prompt: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--resume takes a name first; everything else is one prompt."""
    monkeypatch.setattr(sys, "stdin", None)
    for saved in ("first", "last"):
        transcript.save(saved, Chat((Turn("hi", "ho"),)))
    flags = {"resume": False, "latest": False, "piped": False} | flags
    assert start.read_words(words, **flags) == (name, prompt)


def test_words_that_do_not_fit() -> None:
    with pytest.raises(UsageError):
        start.read_words(["two", "words"], resume=False, latest=False, piped=False)


def test_nothing_to_resume() -> None:
    """Said before a model is loaded."""
    with pytest.raises(DFlashError, match="there is no saved chat yet"):
        start.read_words([], resume=True, latest=False, piped=True)


def test_hint_without_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dflash chat < /dev/null`: the hint names only what the chat has, so no --file."""
    monkeypatch.setattr(sys, "stdin", None)
    for words, piped in (([], True), ([" "], False)):
        with pytest.raises(UsageError, match="the prompt is empty") as found:
            start.read_words(words, resume=False, latest=False, piped=piped)
        assert found.value.hint.startswith("give it as an argument")
        assert "--file" not in found.value.hint


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "slowed.json").write_text(json.dumps({"says": "Fine.\n"}))
    chat = f"{shlex.quote(sys.executable)} -P {shlex.quote(str(SLOWED))} chat --demo"
    program = f"printf '/help me\\nwith this\\n' | {chat} 'A question:'"
    terminal = Terminal(["sh", "-c", program], environment(tmp_path))
    yield terminal
    terminal.close()


@pytest.mark.slow
def test_a_pipe_and_then_the_terminal(piped: Terminal, tmp_path: Path) -> None:
    """The text is the first prompt, after the argument; the chat goes on, and is saved."""
    piped.wait_for(r"› A question:\s+/help me\s+with this\s+Fine\.[\s\S]*" + NUMBERS)
    piped.prompted()
    piped.send("/temp\r")
    piped.wait_for("temp 0")
    piped.prompted()
    piped.send("more\r")
    piped.wait_for(NUMBERS)
    piped.prompted()
    piped.send("\x04")
    piped.leaves(0)
    (file,) = (tmp_path / "data/dflash/chats").glob("*.json")
    turns = json.loads(file.read_text())["turns"]
    assert [turn["prompt"] for turn in turns] == ["A question:\n\n/help me\nwith this", "more"]
