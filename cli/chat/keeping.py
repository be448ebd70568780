"""What the slash commands do with chats on disk, exports and the clipboard, and how one leaves."""

from dataclasses import replace
from pathlib import Path

from dflash_mlx.errors import UsageError

from ..terminal.interrupt import Leave
from . import transcript
from .room import Room, first_words
from .transcript import Chat


def saved_chats(room: Room) -> list[str]:
    """The names that `/load` knows."""
    return transcript.chat_names()


def save(room: Room, name: str) -> None:
    """`/save`."""
    room.line(f"  saved in {room.dialogue.save(name or None)}", "dim")


def load(room: Room, name: str) -> None:
    """`/load`: the present conversation was saved after its last answer."""
    if not name:
        room.line(f"  saved chats: {transcript.listing(transcript.chat_names(), 20)}")
        return
    chat = room.dialogue.load(name)
    tell_loaded(room, name, chat)


def tell_loaded(room: Room, name: str, chat: Chat) -> None:
    """Say what a saved chat is, and when another target goes on with it."""
    turns = f"{len(chat.turns):,} turn{'' if len(chat.turns) == 1 else 's'}"
    room.line(f"  {name}: {turns}", "dim")
    if chat.turns:
        room.line(f"  last prompt: {first_words(chat.turns[-1].prompt)}", "dim")
    now = room.dialogue.pair.target_name
    if chat.model not in (None, now):
        room.line(f"  saved with {chat.model}; {now} goes on. /model {chat.model} changes that")


def export(room: Room, name: str) -> None:
    """`/export`."""
    if not room.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    path = Path(name).expanduser()
    dialogue = room.dialogue
    transcript.export(path, replace(dialogue.chat, model=dialogue.pair.target_name))
    room.line(f"  written to {path}", "dim")


def copy(room: Room, _: str) -> None:
    """`/copy`."""
    if not room.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    from ..terminal.clipboard import to_clipboard

    room.line(f"  copied {to_clipboard(room.dialogue.chat.turns[-1].answer)}", "dim")


def clear(room: Room, _: str) -> None:
    """`/clear`: the old conversation stays saved."""
    dialogue = room.dialogue
    old = dialogue.name
    dialogue.chat, dialogue.name = Chat(system=dialogue.chat.system), None
    room.line(f"  new conversation{f'; the old one is saved as {old}' if old else ''}", "dim")


def leave(room: Room, _: str) -> None:
    """`/exit`."""
    raise Leave
