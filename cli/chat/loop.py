"""Reads prompts and commands and handles them until the user leaves."""

import shlex
import time

import typer

from dflash_mlx.errors import DFlashError

from ..terminal.keys import KeyReader, unquoted
from ..terminal.line_editor import LineEditor
from ..terminal.output import format_count
from ..terminal.signals import LEAVE_HINT, LEAVE_WINDOW, LeaveChat
from . import transcript
from .attachments import is_shell_command, run_in_shell, with_files
from .commands import complete, dispatch, is_command, unescape
from .start import Start
from .state import ChatState

NEVER = float("-inf")


def chat_loop(state: ChatState, keys: KeyReader, start: Start) -> None:
    """Read and handle input, first the prompt that the chat starts with, until the user leaves.

    typer.Exit with the exit code unless that is 0.
    """
    history = None if start.no_history else transcript.data_folder() / "history"
    editor = LineEditor(state.out, lambda text: complete(state, text), history, keys.typed)
    next_prompt = start.prompt
    code = 0
    try:
        while True:
            try:
                first, next_prompt = next_prompt, ""
                text = first or keys.typed.next_message()
                if text:
                    editor.show(text)
                elif keys.typed.leaves and not keys.typed.draft:
                    break
                else:
                    text = editor.read()
                state.dialogue.interrupted_at = NEVER
                with keys.reading():
                    as_it_is = bool(first) and (start.piped or is_shell_command(first))
                    handle_input(state, text, as_it_is=as_it_is)
                if state.dialogue.interrupted_at > NEVER:
                    hold_queue(state, keys)
            except KeyboardInterrupt:
                handle_interrupt(state, keys)
    except EOFError:
        pass
    except LeaveChat as leave:
        code = leave.code
    show_resume_hint(state)
    if code:
        raise typer.Exit(code)


def handle_interrupt(state: ChatState, keys: KeyReader) -> None:
    """After Ctrl-C hold or drop the queue, or print how to leave; LeaveChat if it is the second."""
    state.out.clear_status()
    pressed_at = time.monotonic()
    if pressed_at - state.dialogue.interrupted_at <= LEAVE_WINDOW:
        raise LeaveChat(130) from None
    state.dialogue.interrupted_at = pressed_at
    if keys.typed.held:
        keys.typed.drop()
        state.print_line("  what was queued is dropped", "dim")
    elif keys.typed.messages:
        hold_queue(state, keys)
    else:
        state.print_line(f"  {LEAVE_HINT}, or Ctrl-D; /help lists the commands", "dim")


def hold_queue(state: ChatState, keys: KeyReader) -> None:
    """Put queued messages back to the prompt: after Ctrl-C nothing is sent unseen."""
    if count := keys.typed.hold():
        messages = format_count(
            count, "queued message comes back", "queued messages come back one by one"
        )
        state.print_line(f"  {messages}: Enter sends, Ctrl-C drops", "dim")


def handle_input(state: ChatState, text: str, *, as_it_is: bool = False) -> None:
    """Run a command or answer a prompt; prints errors.

    `as_it_is`: the text was not typed, so it contains no commands and mentions no files.
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
    state.print_line("")


def show_resume_hint(state: ChatState) -> None:
    """Print how to resume this chat if it is on disk; a failed save is tried again."""
    dialogue = state.dialogue
    if not dialogue.autosaves or not dialogue.chat.turns:
        return
    if not dialogue.file.has_turns_of(dialogue.chat):
        dialogue.autosave()
    if dialogue.file.name and dialogue.file.has_turns_of(dialogue.chat):
        name = shlex.quote(dialogue.file.name)
        state.out.note(f"saved: dflash chat --resume {name}", wraps=False)
