"""The file of one conversation: its name, and what this process last wrote to it or read from it.

Knows saved chats and their names; does not know when to save.
"""

import re
import time
from pathlib import Path

from dflash_mlx.errors import DFlashError, UsageError

from ..attachments import split_attached
from . import transcript
from .turn import Chat

TITLE_LENGTH = 40  # characters
FORK_NAME_LENGTH = 70  # characters of a name that are kept when a number is added


class ChatFile:
    """Saves a conversation under one name; never over turns that another process saved there.

    `name` is None until the first save, which makes one of the first prompt; `held` is what the
    file has.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.held: Chat | None = None

    def holds(self, chat: Chat) -> bool:
        """Whether the file has all turns of this conversation."""
        return self.held is not None and self.held.turns == chat.turns

    def load(self, name: str) -> Chat:
        """Read a chat, and save under its name from now on."""
        chat = transcript.load(name)
        self.name, self.held = name, chat
        return chat

    def save(self, chat: Chat, name: str | None = None) -> tuple[Path, str | None]:
        """Save under a new or the present name.

        Returns the path, and the name that was left because another process has saved there. Raises
        UsageError for a taken name, DFlashError for what cannot be written.
        """
        left = None
        if name is not None and name != self.name:
            if transcript.chat_path(name).exists():
                raise UsageError(
                    f"there is a saved chat '{name}' already.",
                    hint=f"give another name, or /load {name}",
                )
            self.name, self.held = name, None
        elif self.name is None:
            self.name = self.unused_name(chat)
        elif self._changed_elsewhere(self.name):
            left, self.name = self.name, self.unused_name(chat)
        path = transcript.save(self.name, chat)
        self.held = chat
        return path, left

    def unused_name(self, chat: Chat) -> str:
        """A name for this conversation that no saved chat has."""
        return unused(self.name[:FORK_NAME_LENGTH].rstrip(" .") if self.name else title(chat))

    def _changed_elsewhere(self, name: str) -> bool:
        """Whether the file is there and does not hold what this process knows of it."""
        if not transcript.chat_path(name).exists():
            return False
        try:
            return transcript.load(name) != self.held
        except DFlashError:
            return True  # not this process's work, and perhaps mended by hand


def title(chat: Chat) -> str:
    """A name of the first words of the first prompt, without its files; else of the date."""
    words, length = [], 0
    prompt, _ = split_attached(chat.turns[0].prompt if chat.turns else "")
    for word in re.findall(r"\w+", prompt):
        length += len(word) + 1
        if words and length > TITLE_LENGTH:
            break
        words.append(word[:TITLE_LENGTH].lower())
    return "-".join(words) or time.strftime("%Y-%m-%d-%H%M%S")


def unused(name: str) -> str:
    """The name, with a number if there is such a chat."""
    found, number = name, 2
    while transcript.chat_path(found).exists():
        found, number = f"{name}-{number}", number + 1
    return found
