"""Chats on disk: whole or not there, private, and read back as they were."""

import json
import os
import stat
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dflash_mlx.errors import DFlashError, UsageError

chat_file = import_module("dflash_mlx.cli.chat.chat_file")
transcript = import_module("dflash_mlx.cli.chat.transcript")
Chat, Turn = transcript.Chat, transcript.Turn

CHAT = Chat(
    (
        Turn("What is 2 + 2?", "4", "two and two", "stop"),
        Turn("ünï \ud800\n/x", "```\na", "", "length"),
    ),
    system="Be brief.",
    left_out=1,
    model="bundled",
    draft="bundled",
    summaries=(transcript.Summary("short", 1, 2),),
)
SUMMARY = {"text": "short", "turns": 1, "written_after": 2}
WRONG = [{"text": 1}, {"turns": "1"}, {"turns": 2}, {"turns": 0}, {"written_after": None}]


def test_a_chat_comes_back_as_it_was() -> None:
    """Also odd characters; nobody else can read the file."""
    path = transcript.save("my chat", CHAT)
    assert transcript.load("my chat") == CHAT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_the_latest_comes_first() -> None:
    """`--resume` without a name takes the first."""
    assert transcript.chat_names() == []
    for age, name in enumerate(("b", "a", "c")):
        path = transcript.save(name, CHAT)
        os.utime(path, (100 + age, 100 + age))
    assert transcript.chat_names() == ["c", "a", "b"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 81, "é" * 101, "a ", "a\n"])
def test_names_that_cannot_be(name: str) -> None:
    """Guards files outside the folder."""
    with pytest.raises(UsageError, match="cannot be named"):
        transcript.save(name, CHAT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        f'{{"version": {transcript.FORMAT_VERSION}}}',
        '{"version": "1"}',
        "\xff",
        f'{{"version": {transcript.FORMAT_VERSION}, "turns": 3}}',
    ],
)
def test_damaged_files(text: str) -> None:
    path = transcript.save("x", CHAT)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DFlashError, match="is not a saved chat"):
        transcript.load("x")


@pytest.mark.parametrize(
    "change",
    [
        {"turns": [{}]},
        {"left_out": "1"},
        {"model": 3},
        {"turns": "ab"},
        *({"summaries": [SUMMARY | wrong]} for wrong in WRONG),
    ],
)
def test_fields_of_another_kind(change: dict) -> None:
    """A file that was changed by hand cannot crash the chat later."""
    path = transcript.save("x", CHAT)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8", "surrogatepass")), **change}))
    with pytest.raises(DFlashError, match="is not a saved chat"):
        transcript.load("x")


def test_a_turn_is_not_sent_beside_its_summary() -> None:
    transcript.save("x", replace(CHAT, left_out=0))
    assert transcript.load("x").left_out == 1


def test_newer_and_missing_files() -> None:
    path = transcript.save("x", CHAT)
    path.write_text(json.dumps({"version": transcript.FORMAT_VERSION + 1}))
    with pytest.raises(DFlashError, match="newer"):
        transcript.load("x")
    with pytest.raises(DFlashError, match="no saved chat 'y'") as found:
        transcript.load("y")
    assert "x" in found.value.hint


def test_a_chat_in_an_older_form_is_named_and_left(cli_app: typer.Typer) -> None:
    """Nothing goes on in it, and nothing is written over it."""
    turns = [{"prompt": "hi", "answer": "ho", "thinking": "", "finish_reason": "stop"}]
    path = transcript.save("x", CHAT)
    path.write_text(json.dumps({"version": 1, "turns": turns, "system": None, "left_out": 0}))
    old = path.read_bytes()
    for words in (["chats", "show", "x"], ["chat", "--resume", "x"], ["generate", "-c", "hi"]):
        done = CliRunner().invoke(cli_app, words, input="hi")
        assert done.exit_code == 1
        assert f"'{path}' was saved by an older dflash" in done.stderr.replace("\n", " ")
    with pytest.raises(UsageError, match="there is a saved chat 'x' already"):
        chat_file.ChatFile().save(CHAT, "x")
    assert path.read_bytes() == old


def test_a_fault_in_saving_keeps_what_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the old chat stays, no half file is left, and one sentence says so."""
    path = transcript.save("x", CHAT)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DFlashError, match="No space left"):
        transcript.save("x", Chat())
    assert transcript.load("x") == CHAT
    assert list(path.parent.iterdir()) == [path]


def test_leftovers_of_a_kill_go() -> None:
    """With the next save of that chat; those of a process that may still write stay."""
    path = transcript.save("x", CHAT)
    old, young, other = (path.with_name(name) for name in (".x.json.a", ".x.json.b", ".y.json.c"))
    for file in (old, young, other):
        file.write_text("half")
    for file in (old, other):
        os.utime(file, (100, 100))
    transcript.save("x", CHAT)
    assert sorted(path.parent.iterdir()) == sorted([path, young, other])


def test_markdown(tmp_path: Path) -> None:
    """An export is whole Markdown, also where an answer was cut in a code block."""
    turns = (Turn("hi", "```py\nprint(1)", "a ``` b", "interrupted"), *CHAT.turns[:1])
    text = transcript.to_markdown(replace(CHAT, turns=turns))
    assert text.startswith("# Chat with bundled\n\n*System prompt:* Be brief.\n\n## You\n\nhi\n\n")
    assert "````text\na ``` b\n````" in text
    summary = "## Summary of all above\n\nshort"
    assert f"```py\nprint(1)\n```\n\n*(stopped)*\n\n{summary}\n\n## You" in text
    path = tmp_path / "chat.md"
    transcript.export(path, CHAT)
    transcript.export(path, replace(CHAT, turns=()))  # an earlier export may be replaced
    path.write_text("my notes")
    with pytest.raises(DFlashError, match="exists and is not an exported chat"):
        transcript.export(path, CHAT)
    assert path.read_text() == "my notes"
    with pytest.raises(DFlashError, match="cannot be written"):
        transcript.export(tmp_path / "no" / "chat.md", CHAT)
