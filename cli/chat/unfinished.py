"""Keeps an answer on disk while it streams, and finds chats whose program ended during one."""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from dflash_mlx.errors import DFlashError

from ..answer import INTERRUPTED, Answer
from . import transcript

# Writing while the answer streams

KEEP_SECONDS = 5.0  # between two writes; a crash loses at most the text of this time
# Bytes per second at most. Chats up to 500 kB, about 125,000 tokens, are written every 5 s; longer
# ones less often, because the whole file is written.
KEEP_RATE = 100_000


class AnswerKeeper:
    """Calls `write` every few seconds while an answer streams, in a thread of its own.

    write: writes the answer so far and returns the bytes of the file; None ends the writing.
    """

    def __init__(self, write: Callable[[Answer], int | None]):
        self._write = write
        self._ended = Event()
        self._thread: Thread | None = None

    def start(self, answer: Answer) -> None:
        """Begin to write this answer, which another thread extends."""
        self._thread = Thread(target=self._run, args=(answer,), name="dflash-keep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop; returns when nothing is being written any more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, answer: Answer) -> None:
        pause = KEEP_SECONDS
        while not self._ended.wait(pause):
            if answer.is_empty:
                continue
            try:
                size = self._write(answer)
            except (DFlashError, OSError):
                return  # the save after the answer tries again, and reports the error
            if size is None:
                return
            pause = max(KEEP_SECONDS, size / KEEP_RATE)


# Marks: which chats are being answered


@dataclass(frozen=True, slots=True)
class AnswerMark:
    """A locked file, named after a chat that is being answered.

    The lock ends with its process: a mark that can be locked was left by a program that ended in
    the middle of the answer.
    """

    path: Path
    handle: int

    def is_in_place(self) -> bool:
        """Whether the file is still this one, neither removed nor replaced."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(self.handle))
        return False

    def remove(self) -> None:
        if self.is_in_place():
            self.path.unlink(missing_ok=True)
        os.close(self.handle)


def marks_path() -> Path:
    return transcript.data_path() / "answering"


def set_mark(name: str) -> AnswerMark:
    """Mark a chat as being answered; DFlashError if the mark cannot be written."""
    path = marks_path() / name
    hidden = path.with_name(f".{name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        handle = os.open(hidden, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before others can see the file
            os.replace(hidden, path)
            transcript.sync_folder(path.parent)
        except BaseException:
            os.close(handle)
            raise
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({error.strerror}).",
            hint="check the folder's permissions",
        ) from None
    return AnswerMark(path, handle)


def left_mark(name: str) -> AnswerMark | None:
    """The mark of a chat whose program ended in the middle of an answer; None for another chat."""
    path = marks_path() / name
    try:
        mark = AnswerMark(path, os.open(path, os.O_RDWR))
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(mark.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if mark.is_in_place():
            return mark
    except BlockingIOError:  # the chat is being answered
        pass
    os.close(mark.handle)
    return None


def unfinished_chat() -> str | None:
    """The latest chat whose program ended in the middle of an answer; None without any."""
    for name in transcript.chat_names():
        if mark := left_mark(name):
            os.close(mark.handle)
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
        mark.remove()
