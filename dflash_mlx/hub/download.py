"""Downloads models from the Hub, after a check of the free disk space.

`Transfer` downloads the files; huggingface_hub arranges them in its cache.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, BinaryIO

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import TORCH_FILE, json_object
from dflash_mlx.files.formats import is_eagle
from dflash_mlx.types import Progress

from .cache import (
    ALLOW_PATTERNS,
    IGNORE_PATTERNS,
    INCOMPLETE,
    cache_folder,
    cached_state,
    first_missing_file,
    repo_folder,
)
from .registry import did_you_mean

# Errors of huggingface_hub and the disk as DFlashErrors

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
RETRY_STATUS = {408, 429, 500, 502, 503, 504}
RESUME_HINT = "run the same command again: it goes on from what is there"


def class_names(error: BaseException) -> set[str]:
    """The class names of an exception and its bases.

    Names, because the module of httpx differs between versions of huggingface_hub.
    """
    return {kind.__name__ for kind in type(error).__mro__}


def http_status(error: BaseException) -> int:
    """The HTTP status of an exception's response; 0 without a response."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: a lost connection, or a slow or overloaded Hub."""
    return "TransportError" in class_names(error) or http_status(error) in RETRY_STATUS


def to_dflash_error(error: Exception, repo: str) -> Exception:
    """The DFlashError for an exception of a download of `repo`.

    Returns an exception that is not known here as it is.
    """
    names = class_names(error)
    code = http_status(error)
    if "LocalEntryNotFoundError" in names:  # it hides the cause
        cause = error.__cause__
        return to_dflash_error(cause, repo) if isinstance(cause, Exception) else offline_error(repo)
    if "GatedRepoError" in names:
        return DFlashError(
            f"'{repo}' asks for a licence that this machine's Hub account has not accepted.",
            hint=f"accept it on https://huggingface.co/{repo} and run `hf auth login`",
        )
    if names & {"RepositoryNotFoundError", "HFValidationError"}:
        return DFlashError(
            f"there is no model '{repo}' on the Hub, and no folder of that name.",
            hint=did_you_mean(repo) or "check the spelling; a private model needs `hf auth login`",
        )
    if "OfflineModeIsEnabled" in names:
        return offline_error(repo)
    if code == 401:
        return DFlashError(
            "the Hub does not accept this machine's token.", hint="run `hf auth login` again"
        )
    if code == 429:
        return DFlashError(
            "the Hub has had too many requests from this address (429).",
            hint=f"wait some minutes, then {RESUME_HINT}; `hf auth login` raises the limit",
        )
    if code >= 500:
        return DFlashError(
            f"the Hub has failed ({code}).", hint=f"wait a while, then {RESUME_HINT}"
        )
    if code:
        return DFlashError(
            f"the Hub refuses '{repo}' ({code}).", hint=f"look at https://huggingface.co/{repo}"
        )
    if "TransportError" in names:
        return network_error(names, repo)
    if isinstance(error, OSError) and error.errno is not None:
        return disk_error(error, repo)
    if "FileMetadataError" in names:
        return DFlashError(
            "the address of the Hub is answered by something else.",
            hint="check HF_ENDPOINT and the proxy settings",
        )
    return error


def offline_error(repo: str) -> DFlashError:
    """The error of a download in offline mode."""
    state = cached_state(repo)
    if state == "yes":
        return DFlashError(
            f"'{repo}' is on this machine, and offline the Hub is not asked for a newer version.",
            hint="leave out --offline and HF_HUB_OFFLINE",
        )
    if state == "partly":
        return DFlashError(
            f"'{repo}' is downloaded only in part, and offline the rest cannot be fetched.",
            hint=f"run `dflash models pull {repo}` without --offline and HF_HUB_OFFLINE",
        )
    return DFlashError(
        f"'{repo}' is not on this machine, and offline it cannot be downloaded.",
        hint="leave out --offline and HF_HUB_OFFLINE, or give a local folder",
    )


def network_error(names: set[str], repo: str) -> DFlashError:
    """The error of a connection that failed or was cut; `names` are the exception's classes."""
    if names & {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"}:
        part = cached_state(repo) == "partly"
        have = "downloaded only in part" if part else "not on this machine"
        return DFlashError(
            f"'{repo}' is {have} and the Hub cannot be reached.",
            hint=f"check the network, then {RESUME_HINT}" if part else "check the network",
        )
    what = "the Hub does not answer" if "TimeoutException" in names else "the connection was cut"
    return DFlashError(
        f"{what} while '{repo}' is downloaded.", hint=f"check the network and {RESUME_HINT}"
    )


def disk_error(error: OSError, repo: str) -> DFlashError:
    """The error of a write to the cache that failed."""
    if error.errno in DISK_FULL:
        return DFlashError(
            f"the disk is full while '{repo}' is downloaded.",
            hint=f"free some space (`dflash models rm` deletes a model) and {RESUME_HINT}",
        )
    return DFlashError(
        f"'{repo}' cannot be written to the cache ({error.strerror or error}).",
        hint="check who may write there, or set HF_HOME to another folder",
    )


# Parallel, resumable download of files into the cache's blobs

THREADS = 4
READ_TIMEOUT = 20.0  # seconds without a byte
RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds; a request that received bytes resets the count
STALL_SECONDS = 60.0  # without a byte, then a file is requested in pieces
PIECE_BYTES = 8 << 20  # a proxy that holds a response back until it is whole passes small ones on
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
    """One download into `folder`, by plain HTTP; hf-xet, which has stalled for many, is not used.

    count: gets the bytes of each chunk, and 0 when nothing has come for a minute.
    """

    def __init__(self, folder: Path, headers: Mapping[str, str], count: Callable[[int], None]):
        self._folder = folder
        # Bytes of a compressed response can be neither counted nor resumed.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._count = count
        self._lock = Lock()
        self._stop = Event()

    def run(self, files: list[File]) -> None:
        """Download the files. The first error stops all; bytes already received stay on disk."""
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
        blob = self._folder / file.blob
        part = self._folder / (file.blob + INCOMPLETE)
        with part.open("ab", buffering=0) as out:
            self._lock_file(out, file)
            if is_complete(blob, file.size):  # another process has downloaded it
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
        """Append the missing bytes; retry after transient errors, after a stall in pieces."""
        attempts = 0
        in_pieces = False
        progress_at = time.monotonic()
        while (start := out.tell()) < file.size:
            end = min(start + PIECE_BYTES, file.size) if in_pieces else file.size
            try:
                self._request(out, file, start, end)
            except Exception as error:
                if out.tell() > start:
                    attempts = 0
                    progress_at = time.monotonic()
                attempts += 1
                if not is_transient(error) or attempts > len(RETRY_DELAYS):
                    raise
                if not in_pieces and time.monotonic() - progress_at >= STALL_SECONDS:
                    in_pieces = True
                    self._add(0)
                self._sleep(RETRY_DELAYS[attempts - 1])

    def _request(self, out: BinaryIO, file: File, start: int, end: int) -> None:
        """Append the bytes from `start` up to `end`, which are a range unless they are the file."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import hf_raise_for_status

        headers = self._headers
        if start or end < file.size:
            headers = {**headers, "Range": f"bytes={start}-{end - 1}"}
        with get_session().stream(
            "GET", file.url, headers=headers, timeout=READ_TIMEOUT
        ) as response:
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


def is_complete(path: Path, size: int) -> bool:
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


# Downloads of whole models

TIMEOUT = 20.0  # seconds, for a response of the Hub
RESERVED_BYTES = 64 << 20  # disk space that a download leaves free


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of a repository's latest revision, with how much of each is cached."""

    repo: str
    files: tuple[File, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def missing_bytes(self) -> int:
        """The bytes that are not in the cache."""
        return sum(file.size - file.cached for file in self.files)

    @property
    def cached(self) -> bool:
        """Whether all files are in the cache."""
        return self.missing_bytes == 0


def plan(repo: str) -> Plan:
    """Request the list of files of a model's latest revision. Downloads its config.json at most.

    Raises DFlashError if the Hub refuses the request or cannot be reached, or if the repository is
    neither a model with safetensors weights nor an EAGLE-3 head.
    """
    with dflash_errors(repo):
        return request_plan(repo)


def request_plan(repo: str) -> Plan:
    """As `plan`, but raises the exceptions of huggingface_hub."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import filter_repo_objects

    # snapshot_download(dry_run=True) sends one request for each file, and moves the cache's `main`
    # to a revision that is not cached.
    info = HfApi().model_info(repo, files_metadata=True, timeout=TIMEOUT)
    siblings = {s.rfilename: s for s in info.siblings or []}
    names = list(
        filter_repo_objects(
            siblings, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS
        )
    )
    commit = str(info.sha)
    weights = any(name.endswith(".safetensors") for name in names)
    if not weights and {"config.json", TORCH_FILE} <= siblings.keys():
        config = hf_hub_download(repo, "config.json", revision=commit, etag_timeout=TIMEOUT)
        if is_eagle(json_object(Path(config))):
            names = [*names, TORCH_FILE]
            weights = True
    for kind, present in (("config.json", "config.json" in names), ("safetensors", weights)):
        if not present:
            raise DFlashError(
                f"'{repo}' has no {kind} file.",
                hint="give a model with safetensors weights, not GGUF or PyTorch files",
            )
    folder = repo_folder(repo)
    files = []
    for name in names:
        lfs = siblings[name].lfs
        size = siblings[name].size or 0
        blob = (lfs.sha256 if lfs else siblings[name].blob_id) or ""
        url = hf_hub_url(repo, name, revision=commit)
        files.append(File(name, url, size, blob, bytes_in_cache(folder, commit, name, blob, size)))
    plan = Plan(repo, tuple(sorted(files, key=lambda file: (file.size, file.name))))
    if not plan.cached:  # a gated repository refuses its files, not the list of them
        get_hf_file_metadata(plan.files[0].url, timeout=TIMEOUT)
    return plan


def bytes_in_cache(folder: Path, commit: str, name: str, blob: str, size: int) -> int:
    """The bytes of one file that the cache holds; 0 for a file of a wrong length.

    `folder` is the cache folder of the repository, `blob` the file's hash (empty if unknown) and
    `size` its full length in bytes.
    """
    paths = [folder / "snapshots" / commit / name]
    if blob:
        paths.append(folder / "blobs" / blob)
    if any(is_complete(path, size) for path in paths):
        return size
    partial = folder / "blobs" / (blob + INCOMPLETE)
    return min(partial.stat().st_size, size) if blob and partial.exists() else 0


def download(repo: str, on_download: Progress | None = None) -> Path:
    """Download the missing files of a model's latest revision. Returns its folder in the cache.

    `on_download(done, total)` is called with counts of bytes, from any thread; with the same counts
    again if no byte has come for a minute and the rest is now requested in pieces. Raises
    DFlashError if the download fails; the bytes received so far stay in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import build_hf_headers
    from tqdm.auto import tqdm

    class Silent(tqdm):
        """A progress bar without output."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})

    with dflash_errors(repo):
        plan = request_plan(repo)
        check_room(plan)
        done = plan.total_bytes - plan.missing_bytes

        def count(new_bytes: int) -> None:
            nonlocal done
            done += new_bytes
            if on_download:
                on_download(done, plan.total_bytes)

        count(0)
        incomplete = [file for file in plan.files if file.cached < file.size and file.blob]
        if incomplete:
            headers = build_hf_headers(library_name="dflash-chat")
            Transfer(repo_folder(repo) / "blobs", headers, count).run(incomplete)
        folder = Path(
            snapshot_download(
                repo,
                allow_patterns=[file.name for file in plan.files],
                tqdm_class=Silent,
            )
        )
        count(plan.total_bytes - done)
        if name := first_missing_file(folder):
            raise DFlashError(
                f"'{repo}' is incomplete on the Hub: {name} is missing or damaged.",
                hint="`dflash models list` shows models that are",
            )
        return folder


def check_room(*plans: Plan) -> None:
    """Raise DFlashError if the disk has not enough free space for the missing files."""
    needed = sum(plan.missing_bytes for plan in plans)
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + RESERVED_BYTES > free:
        names = " and ".join(f"'{plan.repo}'" for plan in plans)
        raise DFlashError(
            f"there is no room for {names}: {needed / 1e9:.1f} GB are missing, and "
            f"'{folder}' has {free / 1e9:.1f} GB free.",
            hint="delete a model with `dflash models rm`, or set HF_HOME to another disk",
        )


@contextmanager
def dflash_errors(repo: str) -> Iterator[None]:
    """Convert errors to DFlashErrors, and silence the warnings of huggingface_hub."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except Exception as error:
        converted = to_dflash_error(error, repo)
        if converted is error:
            raise
        raise converted from error
    finally:
        logging.set_verbosity(before)
