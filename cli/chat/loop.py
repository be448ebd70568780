"""Reads prompts and commands and handles them, one after another, until the user leaves."""

import shlex
import time

import typer

from dflash_mlx.errors import DFlashError, RankLost

from ..terminal.keys import KeyReader, unquoted
from ..terminal.line_editor import LineEditor
from ..terminal.output import format_count
from ..terminal.signals import LeaveChat
from . import transcript
from .attachments import is_shell_command, run_in_shell, with_files
from .commands import complete, dispatch, is_command, unescape
from .dialogue import LEAVE_WINDOW
from .start import Beginning
from .state import ChatState

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
