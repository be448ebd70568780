"""Keeps an answer on disk while it streams, and finds chats whose program ended during one."""

import fcntl
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from dflash_mlx.errors import DFlashError

from ..answer import INTERRUPTED, Answer
from . import transcript

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
        self._due_at = time.monotonic() + KEEP_SECONDS

    def keep(self, answer: Answer) -> None:
        """Write the answer if that is due; called after each of its blocks."""
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
    Path(mark.name).unlink(missing_ok=True)
    mark.close()


def left_mark(name: str) -> IO[str] | None:
    """The mark of a chat whose program ended in the middle of an answer; None for another chat."""
    try:
        mark = (marks_path() / name).open("r+")
    except FileNotFoundError:
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
