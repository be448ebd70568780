"""Files from the Hub into the cache's blobs, several at once; a second try asks only for the rest.

The Hub's own client (2.4) throws unfinished files away; these stay, under a name of their own, and
become blobs when their hash is right. Knows bytes, not models.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import BinaryIO

from dflash_mlx.errors import DFlashError

from .cache import PART
from .faults import passes

WORKERS = 4
TIMEOUT = 20.0  # seconds without a byte
WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before another try; a try that brought bytes starts anew
LOCK_WAIT = 2.0  # seconds; an interrupted download in this process lets go by then


@dataclass(frozen=True, slots=True)
class File:
    """One file of a repository: its name there, its size in bytes, and how many of them are here.

    `blob` is its hash, which is its name in the cache: sha256 for large files, else git's; empty
    when the Hub does not tell.
    """

    name: str
    url: str
    size: int
    blob: str
    have: int


class Stopped(Exception):
    """The download was given up in another thread."""


class Transfer:
    """One download: `run` fetches files into `folder`, reporting every byte to `count`."""

    def __init__(self, folder: Path, headers: Mapping[str, str], count: Callable[[int], None]):
        self._folder = folder
        # Compressed bytes could be neither counted nor resumed.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._count, self._lock = count, Lock()
        self._stop = Event()

    def run(self, files: list[File]) -> None:
        """Fetch the files; the first fault ends all. What has arrived stays for the next time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        waiting: SimpleQueue[File] = SimpleQueue()
        for file in files:
            waiting.put(file)
        faults: list[BaseException] = []

        def work() -> None:
            while not self._stop.is_set():
                try:
                    self._fetch(waiting.get_nowait())
                except (Empty, Stopped):
                    return
                except BaseException as error:
                    faults.append(error)
                    self._stop.set()

        # Daemons, watched from here: Ctrl-C must not wait for a slow network.
        threads = [Thread(target=work, daemon=True) for _ in range(min(WORKERS, len(files)))]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) and not faults:
                threads[0].join(0.05)
                threads.sort(key=Thread.is_alive, reverse=True)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(0.2)
        if faults:
            raise faults[0]

    def _fetch(self, file: File) -> None:
        blob, part = self._folder / file.blob, self._folder / (file.blob + PART)
        with part.open("ab", buffering=0) as out:
            self._claim(out, file)
            if is_whole(blob, file.size):  # another program was quicker
                part.unlink(missing_ok=True)
                return self._add(file.size - file.have)
            if out.tell() > file.size:
                self._restart(out)
            self._receive(out, file)
            if digest(part, file) != file.blob:
                part.unlink()
                raise DFlashError(
                    f"'{file.name}' arrived damaged.", hint="run the same command again"
                )
            os.fsync(out.fileno())
            part.replace(blob)

    def _claim(self, out: BinaryIO, file: File) -> None:
        """Nobody else writes to this file until it is closed."""
        end = time.monotonic() + LOCK_WAIT
        while True:
            try:
                return fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise DFlashError(
                        f"'{file.name}' is being downloaded by another program.",
                        hint="wait until it is done",
                    ) from None
                self._pause(0.1)

    def _receive(self, out: BinaryIO, file: File) -> None:
        """Append what is missing, in as many requests as it takes."""
        tries = 0
        while (start := out.tell()) < file.size:
            try:
                self._request(out, file, start)
            except Exception as error:
                tries = 1 if out.tell() > start else tries + 1
                if not passes(error) or tries > len(WAITS):
                    raise
                self._pause(WAITS[tries - 1])

    def _request(self, out: BinaryIO, file: File, start: int) -> None:
        from huggingface_hub import get_session
        from huggingface_hub.utils import hf_raise_for_status

        headers = self._headers | ({"Range": f"bytes={start}-"} if start else {})
        with get_session().stream("GET", file.url, headers=headers, timeout=TIMEOUT) as response:
            hf_raise_for_status(response)
            if start and response.status_code != 206:
                self._restart(out)
            for chunk in response.iter_bytes():
                if self._stop.is_set():
                    raise Stopped
                write(out, chunk)
                self._add(len(chunk))
                if out.tell() > file.size:
                    return  # not the file that was promised: its hash will say so

    def _restart(self, out: BinaryIO) -> None:
        self._add(-out.tell())
        out.truncate(0)
        out.seek(0)

    def _add(self, count: int) -> None:
        with self._lock:
            self._count(count)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped


def is_whole(path: Path, size: int) -> bool:
    """Whether a file is there and as long as it should be."""
    return path.exists() and path.stat().st_size == size


def write(out: BinaryIO, data: bytes) -> None:
    """All of the bytes: an unbuffered file may take fewer when the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def digest(path: Path, file: File) -> str:
    """The hash of a file, of the kind that its blob's name is."""
    if len(file.blob) == 64:
        made = hashlib.sha256()
    else:
        made = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as stream:
        while data := stream.read(1 << 20):
            made.update(data)
    return made.hexdigest()
