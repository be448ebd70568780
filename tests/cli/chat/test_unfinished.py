"""Chats whose program ended in the middle of an answer are found; others are not."""

import os
import time
from importlib import import_module
from typing import Any

import pytest

from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError

answers = import_module("dflash_mlx.cli.answer")
transcript = import_module("dflash_mlx.cli.chat.transcript")
chat_file = import_module("dflash_mlx.cli.chat.chat_file")


def save(name: str, finish_reason: str = "interrupted") -> None:
    turn = transcript.Turn("hi", "ho", finish_reason=finish_reason)
    transcript.save(name, transcript.Chat((turn,)))


def test_marks_of_the_living_and_of_the_dead() -> None:
    """A chat is offered from the end of its process on, and until it is continued."""
    for age, name in enumerate(("a", "b")):
        save(name)
        os.utime(transcript.chat_path(name), (100 + age, 100 + age))
    assert chat_file.unfinished_chat() is None
    first = chat_file.set_mark("a")
    second = chat_file.set_mark("b")
    assert chat_file.unfinished_chat() is None
    chat_file.forget_mark("a")  # somebody loads the chat that is being answered
    first.close()  # as the end of its process does
    assert chat_file.unfinished_chat() == "a"
    second.close()
    assert chat_file.unfinished_chat() == "b"  # the latest
    chat_file.ChatFile().load("b")
    assert chat_file.unfinished_chat() == "a"
    chat_file.forget_mark("a")
    assert chat_file.unfinished_chat() is None
    assert not [*chat_file.marks_path().iterdir()]


def test_an_answer_that_ended() -> None:
    """Its mark is gone; so is a mark of an earlier end under the same name."""
    save("a")
    chat_file.set_mark("a").close()
    chat_file.remove_mark(chat_file.set_mark("a"))
    assert chat_file.unfinished_chat() is None


def test_two_programs_with_one_chat() -> None:
    """The one that comes later has no mark, and does not take that of the other."""
    save("a")
    first = chat_file.set_mark("a")
    with pytest.raises(DFlashError, match="answering/a' cannot be written"):
        chat_file.set_mark("a")
    assert chat_file.unfinished_chat() is None
    first.close()
    assert chat_file.unfinished_chat() == "a"


@pytest.mark.parametrize("found", ["whole", "damaged", "removed"])
def test_what_is_not_offered(found: str) -> None:
    """The end came after the answer was saved, or nobody can continue the chat."""
    save("a", "stop" if found == "whole" else "interrupted")
    chat_file.set_mark("a").close()
    if found == "damaged":
        transcript.chat_path("a").write_text("{")
    if found == "removed":
        transcript.remove("a")
    assert chat_file.unfinished_chat() is None


def test_a_place_that_cannot_be_written() -> None:
    save("a")
    chat_file.marks_path().write_text("")
    with pytest.raises(DFlashError, match="answering/a' cannot be written"):
        chat_file.set_mark("a")
    assert chat_file.unfinished_chat() is None
    assert chat_file.ChatFile().load("a").turns


def test_a_mark_that_cannot_be_removed() -> None:
    """As in a folder that became read-only: the chat goes on."""
    save("a")
    mark = chat_file.set_mark("a")
    chat_file.marks_path().rename(chat_file.marks_path().with_name("elsewhere"))
    chat_file.marks_path().write_text("")
    chat_file.remove_mark(mark)
    assert mark.closed


@pytest.mark.parametrize("end", [None, DFlashError("the disk is full."), OSError("gone")])
def test_how_often_an_answer_is_written(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every few seconds from its first text on; a large chat less often; not after a fault."""
    results = iter([400_000, 2_000_000, 0, end])
    now, written = 0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def write(said: Any) -> int | None:
        written.append(now)
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    answer = answers.Answer(Stats())
    keeper = chat_file.AnswerKeeper(write)
    for now in range(60):
        answer.text = "ho" * (now >= 8)
        keeper.keep(answer)
    assert written == [8, 13, 33, 38]
