"""The slash commands about saved chats, exports, the clipboard, and leaving."""

from dataclasses import replace
from pathlib import Path

from dflash_mlx.errors import UsageError
from dflash_mlx.remote.address import is_address

from ..terminal.interrupt import LeaveChat
from ..terminal.output import format_count, stdout_size
from . import transcript
from .state import ChatState
from .turn import Chat
from .turns_view import show_turns

MIN_ROWS = 12  # of a screen whose half the end of a loaded chat may take


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
    """Show the end of a loaded chat, and say when it was saved with another target."""
    turns = format_count(len(chat.turns), "turn", "turns")
    state.print_line(f"  {name}: {turns}", "dim")
    target = state.dialogue.model.source.target_name
    if chat.model not in (None, target):
        server = state.dialogue.server is not None or is_address(chat.model)
        hint = "" if server else f". /model {chat.model} changes that"
        state.print_line(f"  saved with {chat.model}; {target} goes on{hint}")
    if chat.turns:
        state.print_line("")
        show_turns(state, chat.turns[-2:], max(stdout_size()[1] or 24, MIN_ROWS) // 2)


def fork_chat(state: ChatState, name: str) -> None:
    """`/fork`: the chat goes on in a copy; what was said so far also stays where it is."""
    dialogue = state.dialogue
    if not dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    previous = dialogue.file.name
    if previous is not None and not dialogue.file.holds(dialogue.chat):
        dialogue.save()
        previous = dialogue.file.name
    dialogue.save(name or dialogue.file.unused_name(dialogue.chat))
    left = f"; {previous} stays as it is" if previous else ""
    state.print_line(f"  goes on as {dialogue.file.name}{left}", "dim")


def show_history(state: ChatState, count: str) -> None:
    """`/history`: all turns, or the last ones."""
    turns = state.dialogue.chat.turns
    if not turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    if count and not (count.isdecimal() and int(count)):
        raise UsageError(f"/history cannot be '{count}'.", hint="give how many turns, or nothing")
    show_turns(state, turns[-int(count) :] if count else turns)


def export_chat(state: ChatState, name: str) -> None:
    """`/export`."""
    if not state.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    path = Path(name).expanduser()
    dialogue = state.dialogue
    transcript.export(path, replace(dialogue.chat, model=dialogue.model.source.target_name))
    state.print_line(f"  written to {path}", "dim")


def clear_chat(state: ChatState, _: str) -> None:
    """`/clear`: the old conversation stays saved."""
    dialogue = state.dialogue
    previous_name = dialogue.file.name
    dialogue.clear()
    state.attached, state.outputs = [], []
    saved = f"; the old one is saved as {previous_name}" if previous_name else ""
    state.print_line(f"  new conversation{saved}", "dim")


def leave_chat(state: ChatState, _: str) -> None:
    """`/exit`."""
    raise LeaveChat
