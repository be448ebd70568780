"""What is kept of a chat when saving or an answer fails, or the terminal or the program goes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
from recorded_chat import chat_options, start_dialogue
from terminal import SLOWED, ChatTerminal, Terminal, environment

import dflash_mlx
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions

backends = import_module("dflash_mlx.cli.backend.local")
loop = import_module("dflash_mlx.cli.chat.loop")
states = import_module("dflash_mlx.cli.chat.state")
transcript = import_module("dflash_mlx.cli.chat.transcript")
chat_file = import_module("dflash_mlx.cli.chat.chat_file")


@pytest.fixture
def state() -> Any:
    backend = backends.LocalBackend(tiny.golden_pair("qwen3_full"))
    talk = start_dialogue(backend, GenerationOptions(max_tokens=12, mode="dflash"), quiet=False)
    talk.out.stderr_is_tty = True  # notes are for terminals
    return states.ChatState(talk, talk.out, chat_options())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ChatTerminal]]:
    started: list[ChatTerminal] = []

    def begin(*arguments: str, **more: Any) -> ChatTerminal:
        started.append(ChatTerminal(tmp_path, *arguments, **more))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.close()


def prompts(name: str) -> list[str]:
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


def test_two_terminals_on_one_chat(state: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that saves last goes on under another name: nobody's turns are lost."""
    state.dialogue.ask("one")
    state.dialogue.save("both")
    other = transcript.load("both")
    transcript.save("both", replace(other, turns=(*other.turns, *other.turns)))
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


def test_ctrl_z_imports_nothing() -> None:
    """It may come in the middle of the same import, while the chat starts."""
    script = (
        "import sys; from dflash_mlx.cli.terminal.signals import suspendable\n"
        "with suspendable(print, print): assert 'prompt_toolkit.input.vt100' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


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


# While an answer streams --------------------------------------------------------------------------

FAULTS = {
    "gpu": RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory."),
    "malloc": RuntimeError("[malloc] Unable to allocate 8 bytes."),
    "memory": MemoryError("std::bad_alloc"),
    "engine": DFlashError("the GPU failed.", hint="use a smaller model"),
}
BUGS = {
    "assertion": AssertionError("rows"),
    "type": TypeError("no rows"),
    "runtime": RuntimeError("rows"),
}


def at_block(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], Any]) -> None:
    """Call a function when the given block of the next answer is counted, and never again."""
    blocks = []
    record = Stats.record

    def counting(self: Stats, block: Any) -> None:
        record(self, block)
        blocks.append(block)
        if len(blocks) == number:
            do()

    monkeypatch.setattr(Stats, "record", counting)


def fail_at_pass(monkeypatch: pytest.MonkeyPatch, pair: Any, number: int, error: Exception) -> None:
    passes = []
    read = pair.target.read

    def failing(*parts: Any, **options: Any) -> Any:
        passes.append(parts)
        if len(passes) >= number:
            raise error
        return read(*parts, **options)

    monkeypatch.setattr(pair.target, "read", failing)


def fresh_answer(state: Any, prompt: str) -> str:
    talk = state.dialogue
    sent = talk.messages(talk.chat, prompt)
    return dflash_mlx.generate(talk.pair, sent, max_tokens=12).text.strip("\n")


def saved_turns() -> list[Any]:
    (name,) = transcript.chat_names()
    return [*transcript.load(name).turns]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failed_answer(
    state: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """One sentence and a hint; the text so far is kept and saved, and the chat goes on."""
    with monkeypatch.context() as patch:
        fail_at_pass(patch, state.dialogue.pair, 4, FAULTS[kind])
        loop.handle_input(state, "one")
    told = capsys.readouterr().err
    assert len(re.findall(r"^(?:Error|Hint): ", told, re.MULTILINE)) == 2
    assert str(FAULTS[kind]).strip(".") in " ".join(told.split())
    (turn,) = saved_turns()
    assert (turn.prompt, turn.finish_reason) == ("one", "interrupted")
    assert turn.answer
    assert chat_file.unfinished_chat() is None
    expected = fresh_answer(state, "two")
    loop.handle_input(state, "two")
    assert [turn.prompt for turn in saved_turns()] == ["one", "two"]
    assert saved_turns()[-1].answer == expected


def test_a_fault_before_the_answer(
    state: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLX raises a fault of one answer at its next operation, which may begin another answer."""

    def fail(*_: Any) -> None:
        raise FAULTS["gpu"]

    with monkeypatch.context() as patch:
        patch.setattr(state.dialogue.pair.engine, "begin", fail)
        loop.handle_input(state, "one")
    assert "[METAL]" in capsys.readouterr().err
    assert transcript.chat_names() == []
    loop.handle_input(state, "two")
    assert [turn.prompt for turn in saved_turns()] == ["two"]


@pytest.mark.parametrize("kind", BUGS)
def test_a_bug_ends_the_program(state: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its traceback is not hidden; what was said is saved, and offered by the next start."""
    fail_at_pass(monkeypatch, state.dialogue.pair, 4, BUGS[kind])
    with pytest.raises(type(BUGS[kind]), match="rows"):
        loop.handle_input(state, "one")
    (turn,) = saved_turns()
    assert (turn.prompt, turn.finish_reason) == ("one", "interrupted")
    assert turn.answer
    assert (transcript.data_path() / "answering" / "one").exists()


@pytest.mark.parametrize("saved", [True, False])
def test_the_prompt_is_on_disk_before_its_answer(
    state: Any, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    """Whole, beside the turns before; nothing at all is written without a history."""
    state.dialogue.autosaves = saved
    state.dialogue.chat = transcript.Chat((transcript.Turn("zero", "0"),), system="Count.")
    found: list[Any] = []
    at_block(monkeypatch, 1, lambda: found.extend(map(transcript.load, transcript.chat_names())))
    state.dialogue.ask("one\n@a.txt")
    if saved:
        unanswered = transcript.Turn("one\n@a.txt", "", finish_reason="interrupted")
        (chat,) = found
        assert chat.turns == (transcript.Turn("zero", "0"), unanswered)
        assert chat.system == "Count."
    else:
        assert not found
        assert not transcript.data_path().exists()


def test_an_answer_without_text_leaves_nothing(
    state: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while the prompt is read, a prompt that is too long: the file is as it was."""

    def stop_at_once(text: str) -> None:
        with monkeypatch.context() as patch:
            step = state.dialogue.pair.engine.step

            def stopped(sequences: Any) -> Any:
                os.kill(os.getpid(), signal.SIGINT)
                return step(sequences)

            patch.setattr(state.dialogue.pair.engine, "step", stopped)
            patch.setattr(state.dialogue.pair.engine.scheduler.prompt_chunks, "sizes", {0: 4})
            loop.handle_input(state, text)

    stop_at_once("zero")
    loop.handle_input(state, "word " * 2000)
    assert "the context holds" in capsys.readouterr().err
    assert transcript.chat_names() == []
    state.dialogue.ask("one")
    turns = saved_turns()
    for text in ("two", "/retry"):
        stop_at_once(text)
        assert saved_turns() == turns == [*state.dialogue.chat.turns]
    assert not [*(transcript.data_path() / "answering").iterdir()]


def test_a_retry_keeps_the_old_answer_until_there_is_text(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that ends while the prompt is read again loses nothing."""
    state.dialogue.ask("one")
    (old,) = saved_turns()
    found: list[Any] = []
    at_block(monkeypatch, 1, lambda: found.extend(saved_turns()))
    state.dialogue.answer_again("other")
    assert found == [old, transcript.Turn("other", "", finish_reason="interrupted")]
    assert [turn.prompt for turn in saved_turns()] == ["other"]


def test_stopped_while_the_prompt_is_saved(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before `/retry` has begun: the last turn stays, here and on disk."""
    state.dialogue.ask("one")
    turns = saved_turns()

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transcript, "write_atomically", stopped)
        with pytest.raises(KeyboardInterrupt):
            state.dialogue.answer_again("two")
    assert saved_turns() == turns == [*state.dialogue.chat.turns]
    assert chat_file.unfinished_chat() is None


# A program that ends in the middle of an answer ------------------------------------------------

WORDS = "".join(f"word{number} " for number in range(4000))
OFFER = r"Your last chat, '%s', ended in the middle of an\s+answer\."


def kept_answer(folder: Path) -> str:
    files = [*(folder / "data/dflash/chats").glob("*.json")]
    return json.loads(files[0].read_text())["turns"][-1]["answer"] if files else ""


def left_marks(folder: Path) -> list[str]:
    return [path.name for path in (folder / "data/dflash/answering").glob("*")]


def kill_while_answering(chat: ChatTerminal, folder: Path, how: str) -> None:
    crash = folder / "crash"
    crash.unlink(missing_ok=True)
    chat.answers(says=WORDS, piece=10, sleep=0.02, keep=0.05, abort=str(crash))
    chat.send("say\x1b\rwords\r")
    chat.wait_until(lambda: "word9 " in kept_answer(folder), "kept")
    if how == "SIGKILL":
        chat.process.kill()
    else:
        crash.touch()
    assert chat.ends() == -signal.Signals[how]


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGABRT"])
def test_the_next_start_offers_to_continue(
    start: Callable[..., ChatTerminal], tmp_path: Path, how: str
) -> None:
    """Killed, or ended by MLX: the prompt and the text are there, and the chat goes on."""
    first = start()
    first.prompted()
    kill_while_answering(first, tmp_path, how)
    kept = kept_answer(tmp_path)
    assert WORDS.startswith(kept)

    second = start()
    second.wait_for(OFFER % "say-words" + r"\s+Continue it\?[^?]* \[Y/n\]: ")
    second.send("\r")
    second.wait_for(r"› say\s+words\s[\s\S]*word9\s[\s\S]*\(stopped\)")
    second.prompted()
    second.answers(says="Fine.\n")
    second.ask("more")
    second.send("\x04")
    second.leaves(0)
    assert left_marks(tmp_path) == []
    (file,) = (tmp_path / "data/dflash/chats").glob("*.json")
    turns = json.loads(file.read_text())["turns"]
    assert [turn["prompt"] for turn in turns] == ["say\nwords", "more"]
    assert [turn["answer"] for turn in turns] == [kept, "Fine."]
    assert [turn["finish_reason"] for turn in turns] == ["interrupted", "stop"]


def test_who_is_offered_what(start: Callable[..., ChatTerminal], tmp_path: Path) -> None:
    """Not a chat that still runs; after a kill one line without a terminal, and one question."""
    first = start()
    first.prompted()
    first.answers(says=WORDS, piece=10, sleep=0.02, keep=0.05)
    first.send("one\r")
    first.wait_until(lambda: "word9 " in kept_answer(tmp_path), "kept")
    beside = start()
    beside.prompted()
    assert "in the middle" not in beside.raw
    first.process.kill()
    first.ends()

    first.answers(says="Fine.\n")
    command = [sys.executable, "-P", str(SLOWED), "chat", "--demo"]
    piped = subprocess.run(
        command, input="hi", env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert piped.stdout == "Fine.\n"
    assert re.search(OFFER % "one" + r" `dflash chat --resume one` continues it\.", piped.stderr)

    declined = start()
    declined.wait_for(r"\[Y/n\]: ")
    declined.send("n\r")
    declined.wait_for("It is saved: dflash chat --resume one")
    declined.prompted()
    assert left_marks(tmp_path) == []
    assert "word9 " in kept_answer(tmp_path)
