"""The slash commands about saved chats, exports, the clipboard, and leaving."""

from dataclasses import replace
from pathlib import Path

from dflash_mlx.errors import UsageError

from ..terminal.interrupt import LeaveChat
from ..terminal.output import format_count
from . import transcript
from .state import ChatState, shorten
from .transcript import Chat


def saved_chats(state: ChatState) -> list[str]:
    """Completions of `/load`."""
    return transcript.chat_names()


def save_chat(state: ChatState, name: str) -> None:
    """`/save`."""
    state.print_line(f"  saved in {state.dialogue.save(name or None)}", "dim")


def load_chat(state: ChatState, name: str) -> None:
    """`/load`: the present conversation is saved already."""
    if not name:
        state.print_line(
            f"  saved chats: {transcript.summarise_names(transcript.chat_names(), 20)}"
        )
        return
    chat = state.dialogue.load(name)
    show_loaded(state, name, chat)


def show_loaded(state: ChatState, name: str, chat: Chat) -> None:
    """Describe a loaded chat, and say when it was saved with another target."""
    turns = format_count(len(chat.turns), "turn", "turns")
    state.print_line(f"  {name}: {turns}", "dim")
    if chat.turns:
        state.print_line(f"  last prompt: {shorten(chat.turns[-1].prompt)}", "dim")
    target = state.dialogue.pair.target_name
    if chat.model not in (None, target):
        state.print_line(
            f"  saved with {chat.model}; {target} goes on. /model {chat.model} changes that"
        )


def export_chat(state: ChatState, name: str) -> None:
    """`/export`."""
    if not state.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    path = Path(name).expanduser()
    dialogue = state.dialogue
    transcript.export(path, replace(dialogue.chat, model=dialogue.pair.target_name))
    state.print_line(f"  written to {path}", "dim")


def copy_answer(state: ChatState, _: str) -> None:
    """`/copy`."""
    if not state.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    from ..terminal.clipboard import copy_to_clipboard

    state.print_line(f"  copied {copy_to_clipboard(state.dialogue.chat.turns[-1].answer)}", "dim")


def clear_chat(state: ChatState, _: str) -> None:
    """`/clear`: the old conversation stays saved."""
    dialogue = state.dialogue
    previous_name = dialogue.file.name
    dialogue.clear()
    saved = f"; the old one is saved as {previous_name}" if previous_name else ""
    state.print_line(f"  new conversation{saved}", "dim")


def leave_chat(state: ChatState, _: str) -> None:
    """`/exit`."""
    raise LeaveChat
