"""Downloads models from the Hub, after a check of the free disk space.

`Transfer` downloads the files; huggingface_hub arranges them in its cache.
"""

import fcntl
import fnmatch
import os
import shutil
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, BinaryIO

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import (
    MASK_FILE,
    TORCH_FILES,
    WEIGHT_INDEX,
    shard_names,
    torch_file_error,
)
from dflash_mlx.files.formats import MTP_TENSOR
from dflash_mlx.types import Progress, silent

from .cache import (
    ALLOW_PATTERNS,
    IGNORE_PATTERNS,
    INCOMPLETE,
    cache_folder,
    first_missing_file,
    is_head_only,
    repo_folder,
    repo_of,
)
from .content import blobs_of, damaged_files, hash_of
from .failures import RETRY_STATUS, dflash_errors, is_transient
from .openable import MODELOPT_FILE, error_of, quant_method, with_modelopt

# Parallel, resumable download of files into the cache's blobs

THREADS = 4
READ_TIMEOUT = 20.0  # seconds without a byte
RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds; a request that received bytes resets the count
STALL_SECONDS = 60.0  # without a byte, then a file is requested in pieces
PIECE_BYTES = 8 << 20  # a proxy that holds a response back until it is whole passes small ones on
WAIT_SECONDS = 0.1  # between two looks at a file that another download receives


@dataclass(frozen=True, slots=True)
class File:
    """One file of a repository.

    `size` and `cached` are bytes: the full length, and what the cache holds. `blob` is the file's
    hash and its name in the cache: sha256 for LFS files, else git's sha1; empty if unknown.
    damaged: the cache holds the full length with another content, which does not count as cached.
    """

    name: str
    url: str
    size: int
    blob: str
    cached: int
    damaged: bool = False


class Cancelled(Exception):
    """Another thread stopped the download."""


class Transfer:
    """One download into `folder`, by plain HTTP; hf-xet, which has stalled for many, is not used.

    count: gets the bytes of each chunk, and 0 when nothing has come for a minute. on_wait: called
    once if another download, of this program or another one, receives a file already. This one
    waits for it then, and counts its bytes.
    """

    def __init__(
        self,
        folder: Path,
        headers: Mapping[str, str],
        count: Callable[[int], None],
        on_wait: Callable[[], None] = lambda: None,
    ):
        self._folder = folder
        # Bytes of a compressed response can be neither counted nor resumed.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._count = count
        self._on_wait = on_wait
        self._has_waited = False
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
        out, counted = self._open_alone(part, file)
        with out:
            received = is_complete(blob, file.size)  # by another download
            done = file.size if received else out.tell()
            if done != counted:
                self._add(done - counted)
            if received:
                return part.unlink(missing_ok=True)
            if out.tell() > file.size:
                self._restart(out)
            self._receive(out, file)
            if hash_of(part, len(file.blob)) != file.blob:
                part.unlink()
                raise DFlashError(
                    f"'{file.name}' arrived damaged.", hint="run the same command again"
                )
            os.fsync(out.fileno())
            part.replace(blob)

    def _open_alone(self, part: Path, file: File) -> tuple[BinaryIO, int]:
        """Open a file's part at its end, locked against other writers until it is closed.

        While another download has it, wait, and count the bytes that arrive there. Returns the part
        and the bytes of the file that are counted.
        """
        counted = file.cached
        while True:
            out = part.open("ab", buffering=0)
            try:
                while not lock(out):
                    self._tell_wait()
                    size = os.fstat(out.fileno()).st_size
                    if size != counted:
                        self._add(size - counted)
                        counted = size
                    self._sleep(WAIT_SECONDS)
                if is_open_at(part, out):
                    out.seek(0, os.SEEK_END)
                    return out, counted
            except BaseException:
                out.close()
                raise
            out.close()  # the other download has renamed or deleted the file

    def _tell_wait(self) -> None:
        with self._lock:
            first = not self._has_waited
            self._has_waited = True
        if first:
            self._on_wait()

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
    return path.exists() and path.stat().st_size == size


def write_all(out: BinaryIO, data: bytes) -> None:
    """Write all bytes. One call of an unbuffered file may write fewer on a nearly full disk."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def lock(out: BinaryIO) -> bool:
    """Lock a file against other writers until it is closed; False if another one has it."""
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_open_at(path: Path, out: BinaryIO) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(out.fileno()))
    except FileNotFoundError:
        return False


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
        return sum(file.size - file.cached for file in self.files)

    @property
    def cached(self) -> bool:
        return self.missing_bytes == 0

    @property
    def damaged(self) -> tuple[File, ...]:
        """The files that `checked` found damaged."""
        return tuple(file for file in self.files if file.damaged)


def plan(repo: str) -> Plan:
    """Request the list of files of a model's latest revision, and its config.json. Keeps no file.

    Raises DFlashError if the Hub refuses the request or cannot be reached, or if the repository is
    no model with safetensors weights that can be opened.
    """
    with dflash_errors(repo):
        return request_plan(repo)


def request_plan(model: str) -> Plan:
    """As `plan`, but raises the exceptions of huggingface_hub."""
    from huggingface_hub import HfApi, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import filter_repo_objects

    repo = repo_of(model)
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
    torch_files = [] if weights else fnmatch.filter(siblings, TORCH_FILES)
    if MASK_FILE in siblings or torch_files:
        raise torch_file_error(repo, MASK_FILE if MASK_FILE in siblings else torch_files[0])
    if is_head_only(model) and WEIGHT_INDEX in names:
        index = Path(hf_hub_download(repo, WEIGHT_INDEX, revision=commit, etag_timeout=TIMEOUT))
        others = set(shard_names(index)) - set(shard_names(index, MTP_TENSOR.match))
        names = [name for name in names if name not in others]
        if not any(name.endswith(".safetensors") for name in names):
            raise DFlashError(f"'{repo}' has no MTP head.", hint="use --draft lookup")
    for kind, present in (("config.json", "config.json" in names), ("safetensors", weights)):
        if not present:
            raise DFlashError(
                f"'{repo}' has no {kind} file.",
                hint="give a model with safetensors weights, not GGUF files",
            )
    folder = repo_folder(repo)
    files = []
    for name in names:
        lfs = siblings[name].lfs
        size = siblings[name].size or 0
        blob = (lfs.sha256 if lfs else siblings[name].blob_id) or ""
        url = hf_hub_url(repo, name, revision=commit)
        files.append(File(name, url, size, blob, bytes_in_cache(folder, commit, name, blob, size)))
    plan = Plan(model, tuple(sorted(files, key=lambda file: (file.size, file.name))))
    if not plan.cached and not is_head_only(model):
        check_openable(repo, commit, siblings)
    return plan


def check_openable(repo: str, commit: str, names: Container[str]) -> None:
    """Raise DFlashError if mlx-lm cannot open a revision. names: of all its files.

    A gated repository refuses its files, not the list of them: it refuses here.
    """
    from huggingface_hub import HfApi, hf_hub_url

    config = request_json(hf_hub_url(repo, "config.json", revision=commit))
    if MODELOPT_FILE in names:
        settings = request_json(hf_hub_url(repo, MODELOPT_FILE, revision=commit))
        config = with_modelopt(config, settings)
    tensors: Iterable[str] = ()
    if quant_method(config) == "gptq":
        tensors = HfApi().get_safetensors_metadata(repo, revision=commit).weight_map
    if error := error_of(repo, config, tensors):
        raise error


def request_json(url: str) -> dict[str, Any]:
    """A JSON object of the Hub. Raises DFlashError for other content."""
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    response = http_backoff(
        "GET",
        url,
        max_retries=len(RETRY_DELAYS),
        base_wait_time=RETRY_DELAYS[0],
        retry_on_status_codes=tuple(RETRY_STATUS),
        headers=build_hf_headers(),
        timeout=TIMEOUT,
    )
    hf_raise_for_status(response)
    try:
        data = response.json()
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DFlashError(f"'{url}' is no JSON object.", hint="use another model")
    return data


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


def checked(plan: Plan, on_check: Progress = silent) -> Plan:
    """The plan with the content of all cached files checked: damaged ones count as missing.

    `on_check(done, total)` is called with counts of bytes. Deletes nothing, see `delete_damaged`.
    """
    folder = repo_folder(plan.repo) / "blobs"
    complete = {file.name: folder / file.blob for file in plan.files if file.cached == file.size}
    damaged = damaged_files(
        {name: blob for name, blob in complete.items() if blob.is_file()}, on_check
    )
    files = (
        replace(file, cached=0, damaged=True) if file.name in damaged else file
        for file in plan.files
    )
    return replace(plan, files=tuple(files))


def delete_damaged(plan: Plan) -> None:
    """Delete the damaged files of a checked plan, so that `download` receives them again."""
    with dflash_errors(plan.repo):
        for file in plan.damaged:
            (repo_folder(plan.repo) / "blobs" / file.blob).unlink(missing_ok=True)


def download(
    repo: str,
    on_download: Progress | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Download the missing files of a model's latest revision. Returns its folder in the cache.

    A file that cannot be read because it is damaged is downloaded again. `on_download(done, total)`
    is called with counts of bytes, from any thread; with the same counts again if no byte has come
    for a minute and the rest is now requested in pieces. `on_wait()` is called once if another
    download has begun with these files: then this one waits, and reports the bytes of that one.
    Raises DFlashError if the download fails; the bytes received so far stay in the cache.
    """
    with dflash_errors(repo):
        folder = download_plan(request_plan(repo), on_download, on_wait)
        while name := first_missing_file(folder, head_only=is_head_only(repo)):
            if not delete_if_damaged(folder, name):
                raise DFlashError(
                    f"'{repo}' is incomplete on the Hub: {name} is missing or damaged.",
                    hint="`dflash models list` shows models that are",
                )
            folder = download_plan(request_plan(repo), on_download, on_wait)
        return folder


def delete_if_damaged(folder: Path, name: str) -> bool:
    """Delete the blob of one file of a cached revision if it is damaged; whether it was."""
    blobs = {file: blob for file, blob in blobs_of(folder).items() if file == name}
    if not damaged_files(blobs):
        return False
    blobs[name].unlink()
    return True


def download_plan(plan: Plan, on_download: Progress | None, on_wait: Callable[[], None]) -> Path:
    """Download the missing files of a plan; raises the exceptions of huggingface_hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import build_hf_headers
    from tqdm.auto import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})

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
        blobs = repo_folder(plan.repo) / "blobs"
        Transfer(blobs, headers, count, on_wait).run(incomplete)
    folder = Path(
        snapshot_download(
            repo_of(plan.repo),
            allow_patterns=[file.name for file in plan.files],
            tqdm_class=Silent,
        )
    )
    count(plan.total_bytes - done)
    return folder


def check_room(*plans: Plan) -> None:
    """Raise DFlashError if the disk has not enough free space for the missing files."""
    # Damaged files are deleted first.
    needed = sum(plan.missing_bytes - sum(file.size for file in plan.damaged) for plan in plans)
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
