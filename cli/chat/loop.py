"""Reads prompts and commands and handles them, one after another, until the user leaves."""

import os
import re
import shlex
import subprocess
import time
from contextlib import suppress

import typer

from dflash_mlx.errors import DFlashError, RankLost

from ..prompt import Attachment, Attachments
from ..terminal.keys import KeyReader, LeaveChat, unquoted
from ..terminal.line_editor import LineEditor
from ..terminal.output import format_count
from . import transcript
from .actions import described, with_files
from .commands import complete, dispatch, is_command, unescape
from .dialogue import LEAVE_WINDOW
from .start import Beginning
from .state import ChatState

# `!command` in a chat

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\a\x1b]*(?:\a|\x1b\\)")
MAX_OUTPUT = 100_000  # characters that are kept, the last ones


def is_shell_command(text: str) -> bool:
    """Whether a text is an exclamation mark and a command; with a space before it, it is text."""
    return text.startswith("!") and bool(text[1:].strip())


def run_in_shell(state: ChatState, text: str) -> None:
    """Run a command without input, show what it prints, and attach that to the next prompt.

    Ctrl-C ends the command. DFlashError when there is no shell.
    """
    command = text[1:].strip()
    parts, stopped = [], False
    try:
        process = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise DFlashError(
            f"the shell cannot be run ({error.strerror}).", hint="set SHELL to the one you use"
        ) from None
    assert process.stdout is not None
    with process, state.terminal_for_others():
        try:
            for line in process.stdout:
                line = ESCAPES.sub("", line)  # colours
                parts.append(line)
                state.print_line(f"  {line.rstrip()}", "dim")
        except KeyboardInterrupt:  # the command got it, too
            stopped = True
            with suppress(ProcessLookupError):
                process.terminate()
    if stopped or process.returncode:
        state.print_line("  stopped" if stopped else f"  exit code {process.returncode}", "warning")
    if output := "".join(parts).strip("\n"):
        kept = Attachment(f"$ {command}", output[-MAX_OUTPUT:], "text")
        told = described(state, Attachments((kept,)))
        if len(output) > MAX_OUTPUT:
            told += f", the last {MAX_OUTPUT:,} of {len(output):,} characters"
        state.outputs.append(kept)
        state.print_line(f"  {told}: with the next prompt; /read off drops it", "dim")


NEVER = float("-inf")


def chat_loop(state: ChatState, keys: KeyReader, begins: Beginning, *, no_history: bool) -> None:
    """Read and handle input until the user leaves; typer.Exit after Ctrl-C twice.

    The first prompt of `begins` comes first.
    """
    history = None if no_history else transcript.data_folder() / "history"
    typed, dialogue, code = keys.typed, state.dialogue, 0
    editor = LineEditor(state.out, lambda text: complete(state, text), history, typed)
    end_with_group(editor)
    try:
        while True:
            try:
                first, begins = begins, Beginning()
                text = first.prompt or typed.next_message()
                if text:
                    editor.show(text)
                elif typed.leaves and not typed.draft:
                    break
                else:
                    text = editor.read()
                dialogue.interrupted_at = NEVER
                with keys.reading():
                    as_it_is = first.piped or is_shell_command(first.prompt)
                    handle_input(state, text, as_it_is=as_it_is)
                if dialogue.interrupted_at > NEVER:
                    hold_queue(state, keys)
            except KeyboardInterrupt:
                state.out.clear_status()
                now = time.monotonic()
                if now - dialogue.interrupted_at <= LEAVE_WINDOW:
                    raise LeaveChat(130) from None
                dialogue.interrupted_at = now
                if typed.held:
                    typed.drop()
                    state.print_line("  what was queued is dropped", "dim")
                elif typed.messages:
                    hold_queue(state, keys)
                else:
                    state.print_line(
                        "  Ctrl-C again to leave, or Ctrl-D; /help lists the commands", "dim"
                    )
    except EOFError:
        pass
    except LeaveChat as leave:
        code = leave.code
    except RankLost as error:
        state.out.error(error.message, error.hint)
        code = 1
    show_resume_hint(state)
    if code:
        raise typer.Exit(code)


def end_with_group(editor: LineEditor) -> None:
    """Nobody waits at a prompt that several machines cannot answer any more."""
    from dflash_mlx.distributed.group import world

    group = world()
    if group is not None:
        group.when_lost = editor.fail
        if group.lost is not None:
            editor.fail(group.lost)


def hold_queue(state: ChatState, keys: KeyReader) -> None:
    """After a Ctrl-C nothing is sent unseen: what was queued comes back to the prompt."""
    if count := keys.typed.hold():
        messages = format_count(count, "queued message comes", "queued messages come")
        state.print_line(f"  {messages} back: Enter sends, Ctrl-C drops", "dim")


def handle_input(state: ChatState, text: str, *, as_it_is: bool = False) -> None:
    """Run a command or answer a prompt; prints errors and returns, or leaves where nothing is left.

    `as_it_is`: a text that nobody typed has no commands in it and names no files.
    """
    text = text.strip("\n")
    if not text.strip():
        return
    state.dialogue.log.typed = text
    try:
        if as_it_is:
            state.print_line("")
            state.dialogue.ask(text)
        elif is_command(text):
            dispatch(state, text)
        elif is_shell_command(text):
            run_in_shell(state, text)
        else:
            prompt = with_files(state, unescape(unquoted(text)).strip())
            state.print_line("")
            state.dialogue.ask(prompt)
    except DFlashError as error:
        state.out.error(error.message, error.hint)
        if isinstance(error, RankLost):
            raise LeaveChat(1) from None
    state.print_line("")


def show_resume_hint(state: ChatState) -> None:
    """Print how to resume this chat, once it is on disk; a save that failed is tried again."""
    dialogue = state.dialogue
    if not dialogue.autosaves or not dialogue.chat.turns:
        return
    if not dialogue.file.holds(dialogue.chat):
        dialogue.autosave()
    if dialogue.file.name and dialogue.file.holds(dialogue.chat):
        name = shlex.quote(dialogue.file.name)
        state.out.note(f"saved: dflash chat --resume {name}", wraps=False)
