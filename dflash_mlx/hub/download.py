"""Downloads models from the Hub into huggingface_hub's cache, in the thread of the caller.

`hf_hub_download` deletes what it has of a file when it is stopped, and does not compare hashes. So
the bytes are received here: they stay for the next time. `snapshot_download` puts complete files in
their places.
"""

import fnmatch
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
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
    damaged_files,
    first_missing_file,
    hash_of,
    is_head_only,
    repo_folder,
    repo_of,
)
from .failures import RETRY_STATUS, dflash_errors, is_transient
from .openable import MODELOPT_FILE, error_of, quant_method, with_modelopt

# What there is to download

TIMEOUT = 20.0  # seconds, for a response of the Hub
RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds; a request that received bytes resets the count
RESERVED_BYTES = 64 << 20  # disk space that a download leaves free


@dataclass(frozen=True, slots=True)
class File:
    """One file of a repository.

    `size` and `cached` are bytes: the full length, and what the cache holds. `hash` is the name of
    its blob in the cache: sha256 for LFS files, else git's sha1; empty if unknown. link: its place
    in the cache. damaged: the cache holds the full length with another content, which does not
    count as cached.
    """

    name: str
    url: str
    size: int
    hash: str
    link: Path
    cached: int = 0
    damaged: bool = False

    @property
    def blob(self) -> Path:
        return self.link.parents[2] / "blobs" / self.hash

    @property
    def part(self) -> Path:
        return self.blob.with_name(self.hash + INCOMPLETE)

    def is_complete(self) -> bool:
        """Whether the cache has all of it, with any content; a copy where links do not work."""
        return size_of(self.link) == self.size or (
            bool(self.hash) and size_of(self.blob) == self.size
        )


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
        return tuple(file for file in self.files if file.damaged)


def plan(model: str) -> Plan:
    """Request the list of files of a model's latest revision, and its config.json. Keeps no file.

    Raises DFlashError if the Hub refuses the request or cannot be reached, or if the repository is
    no model with safetensors weights that can be opened.
    """
    from huggingface_hub import HfApi, hf_hub_url

    repo = repo_of(model)
    with dflash_errors(model):
        # snapshot_download(dry_run=True) sends one request for each file, and moves the cache's
        # `main` to a revision that is not cached.
        info = HfApi().model_info(repo, files_metadata=True, timeout=TIMEOUT)
        commit = str(info.sha)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
        files = []
        for name in needed_names(model, commit, siblings):
            lfs = siblings[name].lfs
            size = siblings[name].size or 0
            digest = (lfs.sha256 if lfs else siblings[name].blob_id) or ""
            url = hf_hub_url(repo, name, revision=commit)
            link = repo_folder(repo) / "snapshots" / commit / name
            file = File(name, url, size, digest, link)
            cached = size if file.is_complete() else min(size_of(file.part), size)
            files.append(replace(file, cached=cached))
        found = Plan(model, tuple(sorted(files, key=lambda file: (file.size, file.name))))
        if not found.cached and not is_head_only(model):
            check_openable(repo, commit, siblings)
    return found


def needed_names(model: str, commit: str, every: Collection[str]) -> list[str]:
    """The files of a revision that a model needs, out of all. DFlashError if it has no weights."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import filter_repo_objects

    repo = repo_of(model)
    names = list(
        filter_repo_objects(every, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS)
    )
    weights = any(name.endswith(".safetensors") for name in names)
    torch_files = [] if weights else fnmatch.filter(every, TORCH_FILES)
    if MASK_FILE in every or torch_files:
        raise torch_file_error(repo, MASK_FILE if MASK_FILE in every else torch_files[0])
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
    return names


def check_openable(repo: str, commit: str, names: Collection[str]) -> None:
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


def size_of(path: Path) -> int:
    """The length of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def checked(plan: Plan, on_check: Progress = silent) -> Plan:
    """The plan with the content of all cached files checked: damaged ones count as missing.

    `on_check(done, total)` is called with counts of bytes. `download` deletes the damaged files.
    """
    complete = {file.name: file.blob for file in plan.files if file.hash and file.is_complete()}
    damaged = damaged_files(complete, on_check)
    files = (
        replace(file, cached=0, damaged=True) if file.name in damaged else file
        for file in plan.files
    )
    return replace(plan, files=tuple(files))


def check_room(*plans: Plan) -> None:
    """Raise DFlashError if the disk has not enough free space for the missing files."""
    # Damaged files are deleted first.
    needed = sum(plan.missing_bytes - sum(file.size for file in plan.damaged) for plan in plans)
    folder, free = free_disk()
    if needed and needed + RESERVED_BYTES > free:
        names = " and ".join(f"'{plan.repo}'" for plan in plans)
        raise DFlashError(
            f"there is no room for {names}: {needed / 1e9:.1f} GB are missing, and "
            f"'{folder}' has {free / 1e9:.1f} GB free.",
            hint="delete a model with `dflash models rm`, or set HF_HOME to another disk",
        )


def free_disk() -> tuple[Path, int]:
    """The folder of the cache, or the lowest above it that exists, and the free bytes there."""
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return folder, shutil.disk_usage(folder).free


# Downloads of whole models


def download(
    model: str | Plan,
    on_download: Progress | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Download the missing files of a model's latest revision. Returns its folder in the cache.

    model: its Hub id, or a plan. A file that cannot be read because it is damaged is downloaded
    again. `on_download(done, total)` is called with counts of bytes; with the same counts again if
    no byte has come for a minute and the rest is now requested in pieces. `on_wait()` is called
    once if another download has begun with a file: then this one waits, and reports its bytes.
    Raises DFlashError if the download fails; the bytes received so far stay in the cache.
    """
    pending = model if isinstance(model, Plan) else plan(model)
    with dflash_errors(pending.repo):
        folder = download_plan(pending, on_download or silent, on_wait)
        while name := first_missing_file(folder, head_only=is_head_only(pending.repo)):
            latest = plan(pending.repo)
            files = tuple(file for file in latest.files if file.name == name)
            repair = checked(replace(latest, files=files))
            if not repair.damaged:
                raise DFlashError(
                    f"'{pending.repo}' is incomplete on the Hub: {name} is missing or damaged.",
                    hint="`dflash models list` shows models that are",
                )
            folder = download_plan(repair, on_download or silent, on_wait)
        return folder


def download_plan(plan: Plan, on_download: Progress, on_wait: Callable[[], None]) -> Path:
    """Download the missing files of a plan; raises the exceptions of huggingface_hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})

    check_room(plan)
    cached = {file.name: file.cached for file in plan.files}
    waited = False

    def report(file: File, size: int) -> None:
        cached[file.name] = size
        on_download(sum(cached.values()), plan.total_bytes)

    def report_wait(file: File) -> None:
        nonlocal waited
        if not waited:
            waited = True
            on_wait()
        size = size_of(file.part)
        if size > cached[file.name]:
            report(file, size)

    on_download(sum(cached.values()), plan.total_bytes)
    for file in plan.files:
        if file.damaged:
            file.blob.unlink(missing_ok=True)
        if file.hash and not file.is_complete():
            with locked(file, report_wait):
                if not file.is_complete():
                    fetch(file, report)
                elif cached[file.name] < file.size:
                    report(file, file.size)
    folder = snapshot_download(
        repo_of(plan.repo),
        allow_patterns=[file.name for file in plan.files],
        tqdm_class=Silent,
    )
    on_download(plan.total_bytes, plan.total_bytes)
    return Path(folder)


# One file: into a blob of the cache, by plain HTTP; hf-xet, which has stalled for many, is not used

READ_TIMEOUT = 20.0  # seconds without a byte
STALL_SECONDS = 60.0  # without a byte, then a file is requested in pieces
PIECE_BYTES = 8 << 20  # a proxy that holds a response back until it is whole passes small ones on
WAIT_SECONDS = 0.1  # between two looks at a file that another download receives
Report = Callable[[File, int], None]  # gets the bytes that are there of a file


@contextmanager
def locked(file: File, on_wait: Callable[[File], None]) -> Iterator[None]:
    """Hold huggingface_hub's lock of a blob; until it is free call `on_wait` again and again."""
    from huggingface_hub.utils import WeakFileLock

    repo = file.blob.parents[1].name
    path = cache_folder() / ".locks" / repo / f"{file.hash}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WeakFileLock(path, timeout=WAIT_SECONDS))
                break
            except TimeoutError:
                on_wait(file)
        yield


def fetch(file: File, report: Report) -> None:
    """Download one file, or the rest of it; the bytes received stay if that fails."""
    file.blob.parent.mkdir(parents=True, exist_ok=True)
    with file.part.open("ab") as out:
        if out.tell() > file.size:
            restart(out)
        receive(out, file, report)
        out.flush()
        os.fsync(out.fileno())
    if hash_of(file.part, len(file.hash)) != file.hash:
        file.part.unlink()
        raise DFlashError(f"'{file.name}' arrived damaged.", hint="run the same command again")
    file.part.replace(file.blob)


def receive(out: BinaryIO, file: File, report: Report) -> None:
    """Append the missing bytes; try again after transient errors, after a stall in pieces."""
    attempts = 0
    in_pieces = False
    progress_at = time.monotonic()
    while (start := out.tell()) < file.size:
        end = min(start + PIECE_BYTES, file.size) if in_pieces else file.size
        try:
            request(out, file, end, report)
        except Exception as error:
            if out.tell() > start:
                attempts = 0
                progress_at = time.monotonic()
            attempts += 1
            if not is_transient(error) or attempts > len(RETRY_DELAYS):
                raise
            if not in_pieces and time.monotonic() - progress_at >= STALL_SECONDS:
                in_pieces = True
                report(file, out.tell())
            time.sleep(RETRY_DELAYS[attempts - 1])


def request(out: BinaryIO, file: File, end: int, report: Report) -> None:
    """Append the bytes of a file up to `end`."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    # Bytes of a compressed response can be neither counted nor resumed.
    headers = {**build_hf_headers(library_name="dflash-chat"), "Accept-Encoding": "identity"}
    if out.tell() or end < file.size:
        headers["Range"] = f"bytes={out.tell()}-{end - 1}"
    with get_session().stream("GET", file.url, headers=headers, timeout=READ_TIMEOUT) as response:
        hf_raise_for_status(response)
        if response.status_code != 206:
            restart(out)
        for chunk in response.iter_bytes():
            out.write(chunk)
            report(file, out.tell())
            if out.tell() > file.size:
                return  # longer than announced: the hash check refuses it


def restart(out: BinaryIO) -> None:
    out.seek(0)
    out.truncate()
