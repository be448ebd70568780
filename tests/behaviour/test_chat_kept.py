"""What is kept of a chat when saving fails, two terminals share it, or the terminal goes."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
from terminal import SLOWED, ChatTerminal, Terminal, environment

from dflash_mlx.options import GenerationOptions

backends = import_module("dflash_mlx.cli.backend.local")
loop = import_module("dflash_mlx.cli.chat.loop")
dialogue = import_module("dflash_mlx.cli.chat.dialogue")
options = import_module("dflash_mlx.cli.options")
output = import_module("dflash_mlx.cli.terminal.output")
states = import_module("dflash_mlx.cli.chat.state")
transcript = import_module("dflash_mlx.cli.chat.transcript")


@pytest.fixture
def state() -> Any:
    """A chat of a tiny pair, as the command makes it."""
    out = output.Output()
    talk = dialogue.Dialogue(
        backends.LocalBackend(tiny.golden_pair("qwen3_full")),
        out,
        settings=GenerationOptions(max_tokens=12, mode="dflash"),
        display=dialogue.DisplaySettings(quiet=True),
        autosaves=True,
    )
    out.stderr_is_tty = True  # notes are for terminals
    return states.ChatState(talk, out, options.ModelOptions())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ChatTerminal]]:
    """Starts a chat in a terminal; it is ended after the test."""
    started: list[ChatTerminal] = []

    def begin(*arguments: str, **more: Any) -> ChatTerminal:
        started.append(ChatTerminal(tmp_path, *arguments, **more))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.close()


def prompts(name: str) -> list[str]:
    """The prompts of a saved chat."""
    return [turn.prompt for turn in transcript.load(name).turns]


def test_what_was_not_saved_is_not_said_to_be(
    state: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk: no hint how to resume. Leaving tries once more, and may succeed."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(transcript, "write_atomically", full)
        state.dialogue.ask("one")
        loop.show_resume_hint(state)
        told = capsys.readouterr().err
        assert told.count("No space left on device") == 2
        assert "saved: dflash chat" not in told
    loop.show_resume_hint(state)
    assert f"saved: dflash chat --resume {state.dialogue.file.name}" in capsys.readouterr().err
    assert prompts(state.dialogue.file.name) == ["one"]


def test_the_hint_can_be_pasted(state: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Names may have spaces."""
    state.dialogue.ask("one")
    state.dialogue.save("my chat")
    loop.show_resume_hint(state)
    assert "dflash chat --resume 'my chat'" in capsys.readouterr().err


def test_two_terminals_on_one_chat(state: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that saves last goes on under another name: nobody's turns are lost."""
    state.dialogue.ask("one")
    state.dialogue.save("both")
    other = transcript.load("both")
    transcript.save("both", dialogue.replace(other, turns=(*other.turns, *other.turns)))
    state.dialogue.ask("two")
    assert "'both' was changed by another dflash: this chat is now 'both-2'" in " ".join(
        capsys.readouterr().err.split()
    )
    state.dialogue.ask("three")
    assert "changed" not in capsys.readouterr().err
    assert prompts("both") == ["one", "one"]
    assert prompts("both-2") == ["one", "two", "three"]


def test_a_chat_that_was_removed_is_saved_again(state: Any) -> None:
    """It is nobody's then."""
    state.dialogue.ask("one")
    name = state.dialogue.file.name
    transcript.chat_path(name).unlink()
    state.dialogue.ask("two")
    assert prompts(name) == ["one", "two"]


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "window"])
def test_the_end_in_the_middle_of_an_answer(
    start: Callable[..., ChatTerminal], tmp_path: Path, how: str
) -> None:
    """`kill`, a closed window: the prompt and what was said so far are kept, as with Ctrl-C."""
    chat = start()
    chat.prompted()
    chat.answers(sleep=0.2, endless=True)
    chat.send("hi\r")
    chat.wait_for(r"[1-9]\d* tok · ")
    if how == "window":
        chat.hang_up()
    else:
        chat.process.send_signal(signal.Signals[how])
    assert chat.ends() != 0
    (file,) = (tmp_path / "data/dflash/chats").glob("*.json")
    (turn,) = json.loads(file.read_text())["turns"]
    assert turn["prompt"] == "hi"
    assert turn["answer"]
    assert turn["finish_reason"] == "interrupted"


def test_suspended_and_gone_on_with(tmp_path: Path) -> None:
    """Ctrl-Z in an answer and at the prompt: the shell's lines stay clean, and `fg` goes on."""
    script = tmp_path / "slowed.json"
    script.write_text(json.dumps({"sleep": 0.1, "endless": True}))
    shell = ["bash", "--noprofile", "--norc", "-i"]
    terminal = Terminal(shell, environment(tmp_path, PS1="shell> "), 100, 24)
    try:
        terminal.wait_for("shell> ")
        terminal.send(f"{sys.executable} -P {SLOWED} chat --demo\r")
        terminal.wait_for("Ctrl-D leaves")
        terminal.prompted()
        terminal.send("hi\r")
        terminal.wait_for(r"[1-9]\d* tok · ")
        terminal.send("\x1a")
        terminal.wait_for(r"Stopped[\s\S]*shell> ")
        assert "tok ·" not in terminal.screen_text()
        terminal.send("fg\r")
        terminal.wait_for(r"[1-9]\d* tok · ")
        terminal.interrupt()
        terminal.prompted()
        terminal.send("half a line\x1a")
        terminal.wait_for(r"Stopped[\s\S]*shell> ")
        terminal.send("fg\r")
        terminal.wait_until(lambda: terminal.cursor_line() == "› half a line", "its line again")
        terminal.send("\x03")
        terminal.prompted()
        terminal.send("\x04")
        terminal.wait_for(r"saved: [\s\S]*shell> ")
    finally:
        terminal.close()


def test_no_place_for_chats(start: Callable[..., ChatTerminal]) -> None:
    """A home that cannot be written: said before anything is loaded, and the chat goes on."""
    chat = start(env={"XDG_DATA_HOME": "/dev/null/nowhere"}, columns=100)
    chat.wait_for(r"cannot be made[\s\S]*Nothing of this chat is\s+kept[\s\S]*XDG_DATA_HOME")
    chat.prompted()
    assert chat.raw.index("Nothing of this chat") < chat.raw.index("/help")
    chat.ask("Next question. Which day comes after Tuesday?")
    chat.send("\x04")
    chat.leaves(0)
    assert "saved:" not in chat.raw
