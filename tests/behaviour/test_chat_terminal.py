"""`dflash chat` in a real terminal: a pty, keys as they are typed, screens as they are seen."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from terminal import NUMBERS, ChatTerminal, environment

from dflash_mlx.engine.stats import Stats
from dflash_mlx.options import GenerationOptions
from dflash_mlx.types import Block

pytestmark = pytest.mark.slow

WEDNESDAY = (
    "Next question: Which day comes after Wednesday?",
    "The day after Wednesday is Thursday.",
)
TYRE = "I want to fix a flat tyre. What should I do?"


HEADINGS = [f"Chapter {name}" for name in ("one", "two", "three", "four", "five")]
DOCUMENT = "".join(
    f"# {heading}\n\nThis is what {heading.lower()} says, and it is long enough for two rows of a "
    f"narrow window.\n\n- first of {heading.lower()}\n- second of {heading.lower()}\n\n"
    f"```python\nprint('{heading.lower()}')\n```\n\n"
    for heading in HEADINGS
)
CODES = re.compile(r"\x1b\[([0-9;]*)m")


class Shared:
    """One chat for many tests, started again when a test has left it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.editor = folder / "editor"
        # one that has to see what is typed into it
        self.editor.write_text(
            "#!/bin/sh\nstty -a | grep -qw echo && printf ' by hand' >> \"$1\"\n"
        )
        self.editor.chmod(0o700)
        self.terminal: ChatTerminal | None = None

    def fresh(self) -> ChatTerminal:
        """The chat in a window of 80x24 with an empty conversation."""
        old = self.terminal
        if old is not None and old.process.poll() is None:
            try:
                if old.screen.size() != (80, 24):
                    old.resize(80, 24)
                old.answers()
                old.command("/clear", "new conversation")
                old.forget()
                return old
            except AssertionError:  # the last test failed and left it somewhere
                pass
        self.close()
        log = "--log", str(self.folder / "log")
        self.terminal = ChatTerminal(self.folder, *log, env={"EDITOR": str(self.editor)})
        self.terminal.prompted()
        return self.terminal

    def close(self) -> None:
        if self.terminal is not None:
            self.terminal.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    found = Shared(tmp_path_factory.mktemp("chat"))
    yield found
    found.close()


@pytest.fixture
def chat(shared: Shared) -> ChatTerminal:
    return shared.fresh()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ChatTerminal]]:
    started: list[ChatTerminal] = []

    def begin(*arguments: str, **options: Any) -> ChatTerminal:
        terminal = ChatTerminal(options.pop("folder", tmp_path), *arguments, **options)
        started.append(terminal)
        return terminal

    yield begin
    for terminal in started:
        terminal.close()


def chats(folder: Path) -> list[Path]:
    """The files of the saved chats, the oldest first."""
    files = (folder / "data/dflash/chats").glob("*.json")
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def turns(folder: Path) -> list[dict[str, str]]:
    return json.loads(chats(folder)[-1].read_text())["turns"]


def cached(line: str) -> int:
    """Prompt tokens that were not read again, from an answer's numbers."""
    found = re.search(r"\+ ([\d,]+)\s+cached", line)
    return int(found[1].replace(",", "")) if found else 0


# Answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (100, 40), (40, 12)])
def test_streaming(chat: ChatTerminal, size: tuple[int, int]) -> None:
    """The numbers move while it runs and are gone after; what was read before is said."""
    chat.resize(*size)
    chat.ask(WEDNESDAY[0])
    chat.answers(says=DOCUMENT[: len(DOCUMENT) // 5], piece=6, sleep=0.08)
    chat.send("Tell me one.\r")
    context = r" · (accept \d+%|\d+% of drafts accepted) · context \d+ / 4,096"
    chat.wait_for(r"\S \d+ tok · [\d.]+ tok/s[^\n]*" + (context if size[0] > 40 else ""))
    numbers = chat.wait_for(NUMBERS + r"[^\n]*").group()
    if size[0] >= 100:
        assert cached(numbers) > 20  # the first turn
    chat.prompted()
    text = chat.screen_text()
    assert text.count("first of chapter one") == 1
    assert " tok · " not in text
    assert max(map(len, text.splitlines()[-12:])) <= size[0]


def test_thinking_is_folded(chat: ChatTerminal) -> None:
    """Thinking runs dim below and leaves one line; /think show prints it."""
    chat.command("/think on", "thinking on")
    chat.answers(sleep=0.2)
    chat.send("Ben has 4 baskets with 4 nuts in each and 7 more nuts. How many in all?\r")
    chat.wait_for(r"\d+ tok · ")
    chat.wait_for("thought for")
    chat.wait_for(NUMBERS)
    chat.prompted()
    said = turns(chat.script.parent)[-1]
    assert said["thinking"]
    line = said["thinking"].strip().splitlines()[0][:30]
    assert re.search(r"\x1b\[2m[^\x1b]*" + re.escape(line), chat.raw)  # dim
    text = chat.screen_text()
    assert len(re.findall(r"^∴ thought for [\d.]+ s, \d+ tokens \(/think show\)$", text, re.M)) == 1
    assert line not in text
    chat.command("/think show", "thinking is shown")
    assert chat.screen_text().count(line) == 1
    chat.command("/think hide", "thinking is folded")
    chat.command("/think off", "thinking off")


# Ctrl-C -------------------------------------------------------------------------------------------


def test_interrupt_while_the_prompt_is_read(chat: ChatTerminal) -> None:
    """Nothing is kept, that is said, and the next answer is right and reads what is missing."""
    before = len(chats(chat.script.parent))
    chat.answers(chunk=8, read=0.1)
    chat.send("These are many words that take a while to be read. " * 5 + "\r")
    chat.wait_for(r"reading the prompt [1-9]\d*/\d+ tokens")
    chat.interrupt()
    chat.wait_for(r"stopped while the prompt was read \(Ctrl-C again\s+within 2 seconds to leave\)")
    chat.prompted()
    assert "reading the prompt" not in chat.screen_text()
    assert len(chats(chat.script.parent)) == before
    chat.answers()
    chat.ask(WEDNESDAY[0])
    assert [(t["prompt"], t["answer"]) for t in turns(chat.script.parent)] == [WEDNESDAY]


def test_interrupt_at_the_prompt(chat: ChatTerminal) -> None:
    """It clears what is typed; on an empty line it says how to leave, and goes on."""
    chat.send("never sent")
    chat.prompted("never sent")
    chat.interrupt()
    chat.prompted()
    chat.interrupt()
    chat.wait_for("Ctrl-C again within 2 seconds to leave, or Ctrl-D")
    chat.prompted()
    time.sleep(2.1)  # after that it counts as the first again
    chat.interrupt()
    chat.wait_for("Ctrl-C again within 2 seconds to leave, or Ctrl-D")
    chat.prompted()
    chat.ask(WEDNESDAY[0])
    assert [turn["prompt"] for turn in turns(chat.script.parent)] == [WEDNESDAY[0]]


def test_second_interrupt_leaves_and_keeps_the_answer(chat: ChatTerminal) -> None:
    """130, the terminal as it was, and what was said so far is saved."""
    chat.answers(sleep=2, endless=True)
    chat.send(TYRE + "\r")
    chat.wait_for("Here is a good way")
    chat.interrupt()
    chat.wait_for(r"again\s+within\s+2\s+seconds")  # two at once are one signal
    chat.interrupt()
    chat.leaves(130)
    assert " tok · " not in chat.screen_text()
    assert re.search(r"^saved: dflash chat --resume \S+$", chat.screen_text(), re.M)
    said = turns(chat.script.parent)[-1]
    assert said["prompt"] == TYRE
    assert said["answer"].startswith("Here is a good way")


@pytest.mark.parametrize("held", [True, False])
def test_a_second_interrupt_after_the_last_block(held: bool, monkeypatch: Any) -> None:
    """It came while what had been said was put away, and all of it was lost."""
    interrupt = import_module("dflash_mlx.cli.terminal.signals").Interrupt(2.0)
    module = import_module("dflash_mlx.cli.answer")
    view = import_module("dflash_mlx.cli.answer").AnswerView(
        import_module("dflash_mlx.cli.terminal.output").Output()
    )
    stop = partial(os.kill, os.getpid(), signal.SIGINT)
    monkeypatch.setattr(view, "finish", stop)
    monkeypatch.setattr(view, "block", lambda block, stats: stop())
    if not held:
        monkeypatch.setattr(interrupt, "defer", lambda deferred=True: None)

    def stream(*_: Any, **__: Any) -> Iterator[Block]:
        yield from (Block((1, 2), text="kept"), Block((3,), text="never"))

    session = SimpleNamespace(stream=stream, stats=Stats())
    with interrupt, nullcontext() if held else pytest.raises(KeyboardInterrupt):
        said = module.answer_prompt(session, "hi", GenerationOptions(), view, interrupt)
        assert (said.text, said.finish_reason) == ("kept", "interrupted")
    assert interrupt.requested_twice


def test_interrupt_of_a_command(chat: ChatTerminal) -> None:
    """/compare is stopped like an answer; one Ctrl-C leaves nothing and nobody."""
    chat.ask(WEDNESDAY[0])
    chat.answers(sleep=0.5)
    chat.send("/compare\r")
    chat.wait_for("warming up")
    chat.interrupt()
    chat.wait_for("stopped: nothing to compare")
    chat.prompted()
    assert "warming up" not in chat.screen_text()


# Typing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
def test_a_paste_is_one_prompt(chat: ChatTerminal, size: tuple[int, int]) -> None:
    """200 lines are one turn; of what does not fit the screen an excerpt stays there, once."""
    chat.resize(*size)
    text = "\n".join(f"x{number}" for number in range(200))
    chat.answers(says="All read.\n")
    chat.paste(text)
    chat.wait_until(lambda: chat.cursor_line() == "  x199", "all pasted")
    chat.send("\r")
    chat.wait_for(NUMBERS + "|cached in")
    chat.prompted()
    said = turns(chat.script.parent)
    assert [(turn["prompt"], turn["answer"]) for turn in said] == [(text, "All read.")]
    assert re.findall(r"^(?:› |  )(x\d+|….*)$", chat.screen_text(), re.M) == [
        "x0",
        "x1",
        "x2",
        "… 196 more lines",
        "x199",
    ]


def test_a_shell_command(chat: ChatTerminal) -> None:
    """It has no terminal, Ctrl-C ends it alone, and what is typed meanwhile is not lost."""
    chat.send("!echo begun; read x </dev/tty; sleep 1; echo got $x\r")
    chat.wait_for(r"\n  begun")
    chat.send("it")
    chat.wait_for(r"  got\s[\s\S]*tokens: with the\s+next prompt")
    chat.prompted("it")
    chat.send("\x15")
    chat.prompted()
    chat.send("!echo begun; sleep 60\r")
    chat.wait_for(r"\n  begun")
    chat.send("ahead")
    chat.interrupt()
    chat.wait_for("  stopped")
    chat.prompted()
    chat.answers(says="Fine.\n")
    chat.ask("why?")
    (turn,) = turns(chat.script.parent)
    assert turn["prompt"].startswith("why?\n\n$ echo begun; read x")
    assert "\ngot\n" in turn["prompt"]


def test_history_and_editor(chat: ChatTerminal, tmp_path: Path) -> None:
    """Up and Ctrl-R find earlier prompts; Ctrl-X Ctrl-E and /edit write in $EDITOR."""
    chat.answers(says="Fine.\n")
    chat.ask("alpha prompt")
    chat.ask("beta prompt")
    chat.send("\x1b[A")
    chat.prompted("beta prompt")
    chat.send("\x1b[A")
    chat.prompted("alpha prompt")
    chat.send("\x03")
    chat.prompted()
    chat.send("\x12alph")
    chat.wait_for("alph")
    chat.send("\r")  # ends the search
    chat.prompted("alpha prompt")
    chat.send("\r")
    chat.wait_for(NUMBERS)
    chat.prompted()
    chat.send("gamma")
    chat.send("\x18\x05")
    chat.prompted("gamma by hand")  # not sent yet
    chat.send("\r")
    chat.wait_for(NUMBERS)
    chat.prompted()
    chat.send("/edit\r")
    chat.wait_for("› gamma by hand by hand")
    chat.wait_for(NUMBERS)
    chat.prompted()
    prompts = [turn["prompt"] for turn in turns(chat.script.parent)]
    assert prompts == ["alpha prompt", "beta prompt", "alpha prompt", "gamma by hand by hand"]
    history = chat.script.parent / "data/dflash/history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "alpha prompt" in history.read_text()


def test_every_command(chat: ChatTerminal, tmp_path: Path) -> None:
    commands = import_module("dflash_mlx.cli.chat.commands").COMMANDS
    typed = [
        ("/help", "/help keys lists the keys"),
        ("/?", "/help keys lists the keys"),
        ("/help keys", "Ctrl-X Ctrl-E"),
        ("/model", "bundled · drafter bundled · block 16"),
        ("/draft", "drafter bundled"),
        ("/draft off", "draft off"),
        ("/draft on", "drafter bundled"),
        ("/system Be brief.", "system prompt set"),
        ("/system edit", "system prompt set"),
        ("/system off", "system prompt removed"),
        ("/tokens", r"turn 1 +\d+ +\d+%(?s:.*)left "),
        ("/compact", "there are no turns to summarise"),
        ("/rewind 7", r"give 0 to 1"),
        ("/set", r"temp +0\.?0?  randomness; 0 always takes the likeliest"),
        ("/temp 0.7", "temp 0.7"),
        ("/temp 0", "temp 0"),
        ("/set recommended", "recommends no sampling"),
        ("/think", "thinking "),
        ("/stats", "drafts accepted"),
        ("/read off", "no files go"),
        ("/preset", "no presets"),
        ("/mcp", "no MCP servers"),
        ("/compare", r"identical(?s:.*)The same answer, token for token, "),
        ("/watch", r"a colour for each pass of the\s+target"),
        ("/retry", r"each colour is one pass of the\s+target(?s:.*)the same again"),
        ("/watch", "as Markdown again"),
        ("/continue", NUMBERS),
        ("/save mine", r"saved in\s[^›]*mine\.json"),
        (f"/export {tmp_path}/chat.md", "written to"),
        ("/copy", "copied"),
        ("/history", "› Next question"),
        ("/fork", "goes on as mine-2; mine stays as it is"),
        ("/undo", "forgotten: Next question"),
        ("/load mine", "mine: "),
        ("/clear", "new conversation"),
        ("/tmep 0.7", r"unknown command /tmep\. Did you mean /temp\?"),
        ("/export", "needs file.md"),
        ("/stats now", "takes no argument"),
        ("/temp warm", "temp cannot be 'warm'"),
    ]
    chat.ask(WEDNESDAY[0])
    for text, shows in typed:
        chat.command(text, shows)
        assert chat.process.poll() is None
    used = {text[1:].split()[0] for text, _ in typed}
    assert {command.name for command in commands} - used == {"edit", "exit"}
    assert WEDNESDAY[1] in (tmp_path / "chat.md").read_text()
    chat.answers(says="Fine.\n")
    chat.ask("//etc is a folder")
    assert [turn["prompt"] for turn in turns(chat.script.parent)] == ["/etc is a folder"]
    chat.send("/exit\r")
    chat.leaves(0)
    log = (chat.script.parent / "log").read_text()
    messages = [json.loads(line).get("message") for line in log.splitlines()]
    assert "unknown command …. Did you mean /temp?" in messages
    assert "Wednesday" not in log


def test_several_answers_and_a_way_back(chat: ChatTerminal) -> None:
    chat.answers(says="One *two* three.\n\nFour.\n")
    chat.ask("first")
    chat.ask("second")
    chat.command("/temp 1", "temp 1")
    chat.send("/retry 2\r")
    chat.wait_for("Which answer stays")
    assert re.search("One two three. +│ One two three.", chat.screen_text())
    chat.send("2\r")
    chat.wait_for("answer 2 stays")
    chat.prompted()
    chat.command("/temp 0", "temp 0")
    chat.send("/rewind\r")
    chat.wait_for("Back to the end of which turn")
    assert "  1  first" in chat.screen_text()
    chat.send("1\r")
    chat.wait_for("back by 1 turn ")
    chat.prompted()
    saved = turns(chat.script.parent)
    assert [turn["prompt"] for turn in saved] == ["first"]


def test_the_end_of_a_long_answer_is_told(
    chat: ChatTerminal, start: Callable[..., ChatTerminal], tmp_path: Path
) -> None:
    """By the bell, unless the config file switches it off."""
    chat.answers(says="Fine.\n", long=0)
    before = chat.raw.count("\a")
    chat.ask("hello")
    assert chat.raw.count("\a") == before + 1
    (tmp_path / "config" / "dflash").mkdir(parents=True)
    (tmp_path / "config" / "dflash" / "config.toml").write_text('notify = "off"\n')
    silent = start()
    silent.answers(says="Fine.\n", long=0)
    silent.prompted()
    silent.ask("hello")
    assert "\a" not in silent.raw


def test_long_lines_hang() -> None:
    """What does not fit goes on below its column, or below the line where that is too narrow."""
    wrap_hanging = import_module("dflash_mlx.cli.terminal.render").wrap_hanging
    line = "  /set [name]  show or change all that can be set"
    assert wrap_hanging(line, 0) == wrap_hanging(line, 80) == line
    assert wrap_hanging(line, 43) == (
        "  /set [name]  show or change all that can\n               be set"
    )
    assert (
        wrap_hanging(line, 30) == "  /set [name]\n      show or change all that\n      can be set"
    )
    assert wrap_hanging("  one two three", 10) == "  one two\n  three"
    assert wrap_hanging("a\n\nb", 10) == "a\n\nb"
    parts = "  time   1.00 s · first token 0.03 s · 148.6 tok/s"
    assert wrap_hanging(parts, 45) == ("  time   1.00 s · first token 0.03 s\n         148.6 tok/s")
    assert wrap_hanging("one two three · b", 10) == "one two\nthree · b"


# Runs of their own --------------------------------------------------------------------------------


def test_resume_history_and_leaving(shared: Shared, start: Callable[..., ChatTerminal]) -> None:
    """A second run finds prompts and chats; Ctrl-C at the prompt soon after a stop leaves."""
    first = shared.fresh()
    first.ask(WEDNESDAY[0])
    first.send("\x04")
    first.leaves(0)
    chat = start("--resume", folder=shared.folder, columns=40, rows=12)
    chat.wait_for("1 turn")
    chat.prompted()
    assert "› Next question: Which day" in chat.screen_text()
    assert "is Thursday." in chat.screen_text()
    assert max(map(len, chat.screen_text().splitlines())) <= 40
    chat.send("\x1b[A")
    chat.wait_until(lambda: "ednesday?" in chat.cursor_line(), "the last prompt")
    chat.send("\x03")
    chat.prompted()
    chat.answers(sleep=0.4, endless=True)
    chat.send("hi\r")
    chat.wait_for(r"\d+ tok · ")
    chat.interrupt()
    chat.wait_for(r"\(Ctrl-C\s+again\s+within\s+2\s+seconds\s+to\s+leave\)")
    chat.prompted()
    chat.interrupt()
    chat.leaves(130)
    assert [turn["prompt"] for turn in turns(shared.folder)] == [WEDNESDAY[0], "hi"]


def test_no_colour(start: Callable[..., ChatTerminal], tmp_path: Path) -> None:
    """NO_COLOR leaves bold and dim, at the prompt, too; twice Ctrl-C there leaves with 130."""
    chat = start(columns=100, rows=40, env={"NO_COLOR": "1"})
    chat.prompted()
    chat.answers(says=DOCUMENT[:300], piece=60)
    chat.ask("Tell me all.")
    chat.send("/thi\t \t")
    chat.wait_for("hide")
    chat.send("\x03")
    chat.prompted()
    chat.interrupt()
    chat.wait_for("Ctrl-C again within 2 seconds to leave")
    chat.prompted()
    chat.interrupt()
    chat.leaves(130)
    used = {code for found in CODES.findall(chat.raw) for code in found.split(";")}
    assert "1" in used
    assert "2" in used
    assert used <= {"", "0", "1", "2", "3", "4", "7", "9"}


def test_plain_and_killed(start: Callable[..., ChatTerminal], tmp_path: Path) -> None:
    """--plain: ASCII, no escape codes, a word at the end; `kill` leaves the terminal as it was."""
    chat = start("--plain", env={"DFLASH_NO_HISTORY": "1"})
    chat.wait_until(lambda: chat.cursor_line() == ">", "prompted")
    chat.send(WEDNESDAY[0] + "\r")
    said = r"The day after [\s\S]*? answer complete [\s\S]*? new"
    answer = chat.wait_for(said).group()
    assert answer.isascii()
    assert answer in chat.raw  # as it is: without escape codes
    chat.wait_until(lambda: chat.cursor_line() == ">", "prompted")
    assert not (tmp_path / "data").exists()
    chat.answers(sleep=0.3, endless=True)
    chat.send("hi\r")
    chat.wait_for(r"hi\r*\n[\s\S]*\w")
    chat.process.send_signal(signal.SIGTERM)
    chat.leaves(143)


@pytest.mark.parametrize("busy", [True, False])
def test_the_window_is_closed(
    start: Callable[..., ChatTerminal], tmp_path: Path, busy: bool
) -> None:
    """Even where the signal for that is ignored, nothing stays behind and spins."""
    chat = start(ignores=[signal.SIGHUP])
    chat.prompted()
    if busy:
        chat.answers(sleep=0.2, endless=True)
        chat.send("hi\r")
        chat.wait_for(r"\d+ tok · ")
    chat.hang_up()
    assert chat.ends() != 0 or not busy


def test_answers_into_a_file(start: Callable[..., ChatTerminal], tmp_path: Path) -> None:
    """The terminal talks, the file holds the answers and nothing else."""
    with (tmp_path / "out").open("wb") as out:
        chat = start(stdout=out)
        chat.prompted()
        chat.ask(WEDNESDAY[0])
        chat.command("/stats", "drafts accepted")
        chat.ask("I have a question. Which day comes before Thursday?")
        chat.send("\x04")
        chat.leaves(0)
    wanted = f"{WEDNESDAY[1]}\nThe day before Thursday is Wednesday.\n"
    assert (tmp_path / "out").read_text() == wanted
    assert WEDNESDAY[1] not in chat.screen_text()


def test_pipes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dflash_mlx.cli", "chat", "--demo"],
        input=WEDNESDAY[0].encode() + b"\n",
        capture_output=True,
        env=environment(tmp_path),
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == WEDNESDAY[1].encode() + b"\n"
    assert not list(tmp_path.glob("data/**/*"))
