"""The file of a conversation, which is written while an answer streams, too.

Chats whose program ended in the middle of an answer are found.
"""

import fcntl
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from dflash_mlx.errors import DFlashError, UsageError

from ..answer import INTERRUPTED, Answer
from ..backend.base import ModelInfo
from ..prompt import split_attached
from ..terminal.output import Output
from . import transcript
from .transcript import Chat

TITLE_LENGTH = 40  # characters
FORK_NAME_LENGTH = 70  # characters of a name before a number is added


class ChatFile:
    """Saves a conversation under one name, but not over turns that another process saved there.

    name: None until the first save, which makes it from the first prompt. saved: the chat as this
    process last read or wrote it.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.saved: Chat | None = None

    def has_turns_of(self, chat: Chat) -> bool:
        return self.saved is not None and self.saved.turns == chat.turns

    def load(self, name: str) -> Chat:
        """Read a chat, and save under its name from now on; it is not offered any more."""
        chat = transcript.load(name)
        forget_mark(name)
        self.name = name
        self.saved = chat
        return chat

    def save(self, chat: Chat, name: str | None = None) -> tuple[Path, str | None]:
        """Save under a new or the present name.

        Returns the path, and the old name if the chat had to leave it because another process has
        saved there. UsageError for a taken name, DFlashError if the file cannot be written.
        """
        old_name = None
        if name not in (None, self.name):
            if transcript.chat_path(name).exists():
                raise UsageError(
                    f"there is a saved chat '{name}' already.",
                    hint=f"give another name, or /load {name}",
                )
        elif self.name is None:
            name = self.unused_name(chat)
        elif self._changed_elsewhere(self.name):
            old_name = self.name
            name = self.unused_name(chat)
        else:
            name = self.name
        path = transcript.save(name, chat)
        self.name = name
        self.saved = chat
        return path, old_name

    def update(self, chat: Chat) -> int | None:
        """Save again under the present name; returns the bytes of the file.

        None, and nothing is written, without a name or if another process has saved there.
        """
        if self.name is None or self._changed_elsewhere(self.name):
            return None
        if chat != self.saved:
            transcript.save(self.name, chat)
            self.saved = chat
        return transcript.chat_path(self.name).stat().st_size

    def discard(self) -> None:
        """Remove the file, unless another process has saved there; the next save makes a name."""
        if self.name is not None and not self._changed_elsewhere(self.name):
            transcript.remove(self.name)
        self.name = None
        self.saved = None

    def unused_name(self, chat: Chat) -> str:
        return numbered(self.name[:FORK_NAME_LENGTH].rstrip(" .") if self.name else title(chat))

    def _changed_elsewhere(self, name: str) -> bool:
        """Whether the file exists and is not as this process last read or wrote it."""
        if not transcript.chat_path(name).exists():
            return False
        try:
            return transcript.load(name) != self.saved
        except DFlashError:
            return True  # damaged, but not by this process: the user may still repair it


def title(chat: Chat) -> str:
    """A name from the first words of the first prompt, without its files; else from the date."""
    words = []
    length = 0
    prompt, _ = split_attached(chat.turns[0].prompt if chat.turns else "")
    for word in re.findall(r"\w+", prompt):
        length += len(word) + 1
        if words and length > TITLE_LENGTH:
            break
        words.append(word[:TITLE_LENGTH].lower())
    return "-".join(words) or time.strftime("%Y-%m-%d-%H%M%S")


def numbered(name: str) -> str:
    """The name, with a number if a saved chat has it already."""
    candidate = name
    number = 2
    while transcript.chat_path(candidate).exists():
        candidate = f"{name}-{number}"
        number += 1
    return candidate


# One more turn of the chat that was saved last, for `dflash generate --continue`


def save_turn(file: ChatFile, chat: Chat, info: ModelInfo, out: Output) -> None:
    """Save a chat with its new turn; a warning if its name had to change."""
    _, old_name = file.save(replace(chat, model=info.name, draft=info.draft))
    if old_name is not None:
        out.warn(f"'{old_name}' was changed by another dflash: this chat is now '{file.name}'")


# Writing while the answer streams

KEEP_SECONDS = 5.0  # between two writes; a crash loses at most the text of this time
# Bytes per second at most. Chats up to 500 kB, about 125,000 tokens, are written every 5 s; longer
# ones less often, because the whole file is written.
KEEP_RATE = 100_000


class AnswerKeeper:
    """Calls `write` every few seconds while an answer streams.

    write: writes the answer so far and returns the bytes of the file; None ends the writing.
    """

    def __init__(self, write: Callable[[Answer], int | None]):
        self._write = write
        self._due_at: float | None = None

    def keep(self, answer: Answer) -> None:
        """Write the answer if that is due; called after each of its blocks."""
        if self._due_at is None:
            self._due_at = time.monotonic() + KEEP_SECONDS
        if answer.is_empty or time.monotonic() < self._due_at:
            return
        size = None
        with suppress(DFlashError, OSError):  # the save after the answer reports the error
            size = self._write(answer)
        pause = math.inf if size is None else max(KEEP_SECONDS, size / KEEP_RATE)
        self._due_at = time.monotonic() + pause


# Marks: which chats are being answered. A mark is a file named after a chat, locked by the process
# that answers it. One that can be locked was left by a program that ended in the middle.


def marks_path() -> Path:
    return transcript.data_path() / "answering"


def set_mark(name: str) -> IO[str]:
    """Mark a chat as being answered; DFlashError if the mark cannot be written."""
    path = marks_path() / name
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        mark = path.open("a")
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        transcript.sync_folder(path.parent)
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({error.strerror}).", hint="check the folder's permissions"
        ) from None
    return mark


def remove_mark(mark: IO[str]) -> None:
    with suppress(OSError):  # the folder may be read-only by now
        Path(mark.name).unlink()
    mark.close()


def left_mark(name: str) -> IO[str] | None:
    """The mark of a chat whose program ended in the middle of an answer; None for another chat."""
    try:
        mark = (marks_path() / name).open("r+")
    except OSError:  # there is none, or it belongs to somebody else
        return None
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # the chat is being answered
        mark.close()
        return None
    return mark


def unfinished_chat() -> str | None:
    """The latest chat whose program ended in the middle of an answer; None without any."""
    for name in transcript.chat_names():
        if mark := left_mark(name):
            mark.close()
            if is_unfinished(name):
                return name
    return None


def is_unfinished(name: str) -> bool:
    """Whether the last answer of a saved chat is not complete; False for a damaged file."""
    with suppress(DFlashError):
        turns = transcript.load(name).turns
        return bool(turns) and turns[-1].finish_reason in (INTERRUPTED, "calls")
    return False


def forget_mark(name: str) -> None:
    """Do not offer to continue this chat any more."""
    if mark := left_mark(name):
        remove_mark(mark)
