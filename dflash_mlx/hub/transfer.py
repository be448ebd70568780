"""Parallel, resumable download of files from the Hub into the cache's blobs.

huggingface_hub 2.4 deletes incomplete files. Here they stay, with the suffix `INCOMPLETE`, and
become blobs when their hash is correct. This module knows bytes, not models.
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

from .cache import INCOMPLETE
from .errors import is_transient

THREADS = 4
TIMEOUT = 20.0  # seconds without a byte
RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds; a request that received bytes resets the count
LOCK_TIMEOUT = 2.0  # seconds; an interrupted download in this process releases its lock in less


@dataclass(frozen=True, slots=True)
class File:
    """One file of a repository.

    `size` and `cached` are bytes: the full length, and what the cache holds. `blob` is the file's
    hash and its name in the cache: sha256 for LFS files, else git's sha1; empty if unknown.
    """

    name: str
    url: str
    size: int
    blob: str
    cached: int


class Cancelled(Exception):
    """Another thread stopped the download."""


class Transfer:
    """One download: `run` fetches files into `folder`; `count` gets the bytes of each chunk."""

    def __init__(self, folder: Path, headers: Mapping[str, str], count: Callable[[int], None]):
        self._folder = folder
        # Bytes of a compressed response can be neither counted nor resumed.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._count, self._lock = count, Lock()
        self._stop = Event()

    def run(self, files: list[File]) -> None:
        """Fetch the files. The first error stops all; the bytes received so far stay on disk."""
        self._folder.mkdir(parents=True, exist_ok=True)
        queue: SimpleQueue[File] = SimpleQueue()
        for file in files:
            queue.put(file)
        errors: list[BaseException] = []

        def work() -> None:
            while not self._stop.is_set():
                try:
                    self._fetch(queue.get_nowait())
                except (Empty, Cancelled):
                    return
                except BaseException as error:
                    errors.append(error)
                    self._stop.set()

        # Daemon threads, which this one watches: Ctrl-C must not wait for a slow network.
        threads = [Thread(target=work, daemon=True) for _ in range(min(THREADS, len(files)))]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) and not errors:
                threads[0].join(0.05)
                threads.sort(key=Thread.is_alive, reverse=True)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(0.2)
        if errors:
            raise errors[0]

    def _fetch(self, file: File) -> None:
        blob, part = self._folder / file.blob, self._folder / (file.blob + INCOMPLETE)
        with part.open("ab", buffering=0) as out:
            self._lock_file(out, file)
            if is_whole(blob, file.size):  # another process has fetched it
                part.unlink(missing_ok=True)
                return self._add(file.size - file.cached)
            if out.tell() > file.size:
                self._restart(out)
            self._receive(out, file)
            if file_hash(part, file) != file.blob:
                part.unlink()
                raise DFlashError(
                    f"'{file.name}' arrived damaged.", hint="run the same command again"
                )
            os.fsync(out.fileno())
            part.replace(blob)

    def _lock_file(self, out: BinaryIO, file: File) -> None:
        """Lock the file against other writers until it is closed."""
        end = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                return fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise DFlashError(
                        f"'{file.name}' is being downloaded by another program.",
                        hint="wait until it is done",
                    ) from None
                self._sleep(0.1)

    def _receive(self, out: BinaryIO, file: File) -> None:
        """Append the missing bytes; retry after transient errors."""
        attempts = 0
        while (start := out.tell()) < file.size:
            try:
                self._request(out, file, start)
            except Exception as error:
                attempts = 1 if out.tell() > start else attempts + 1
                if not is_transient(error) or attempts > len(RETRY_DELAYS):
                    raise
                self._sleep(RETRY_DELAYS[attempts - 1])

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
                    raise Cancelled
                write_all(out, chunk)
                self._add(len(chunk))
                if out.tell() > file.size:
                    return  # longer than announced: the hash check refuses it

    def _restart(self, out: BinaryIO) -> None:
        self._add(-out.tell())
        out.truncate(0)
        out.seek(0)

    def _add(self, count: int) -> None:
        with self._lock:
            self._count(count)

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Cancelled


def is_whole(path: Path, size: int) -> bool:
    """Whether a file exists and has `size` bytes."""
    return path.exists() and path.stat().st_size == size


def write_all(out: BinaryIO, data: bytes) -> None:
    """Write all bytes. One call of an unbuffered file may write fewer on a nearly full disk."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def file_hash(path: Path, file: File) -> str:
    """The hash of a file in hex: sha256 if `file.blob` is one (64 digits), else git's blob sha1."""
    if len(file.blob) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as stream:
        while data := stream.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
