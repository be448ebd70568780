"""Download of a model from the Hub: its size, the check of free disk space, and the download.

`transfer` fetches the bytes of large files; huggingface_hub lays out the cache.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.drafter.kinds import is_eagle
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import TORCH_FILE, json_object
from dflash_mlx.progress import Progress

from .cache import (
    ALLOW_PATTERNS,
    IGNORE_PATTERNS,
    INCOMPLETE,
    cache_folder,
    first_missing_file,
    repo_folder,
)
from .errors import to_dflash_error
from .transfer import File, Transfer, is_whole

TIMEOUT = 20.0  # seconds, for a response of the Hub
RESERVED_BYTES = 64 << 20  # disk space that a download leaves free


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of a repository's latest revision, with how much of each is cached."""

    repo: str
    files: tuple[File, ...]

    @property
    def total_bytes(self) -> int:
        """The bytes of all files."""
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
    found = {s.rfilename: s for s in info.siblings or []}
    names = list(
        filter_repo_objects(found, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS)
    )
    commit = str(info.sha)
    weights = any(name.endswith(".safetensors") for name in names)
    if not weights and {"config.json", TORCH_FILE} <= found.keys():
        config = hf_hub_download(repo, "config.json", revision=commit, etag_timeout=TIMEOUT)
        if is_eagle(json_object(Path(config))):
            names, weights = [*names, TORCH_FILE], True
    for what, present in (("config.json", "config.json" in names), ("safetensors", weights)):
        if not present:
            raise DFlashError(
                f"'{repo}' has no {what} file.",
                hint="give a model with safetensors weights, not GGUF or PyTorch files",
            )
    folder = repo_folder(repo)
    files = []
    for name in names:
        lfs, size = found[name].lfs, found[name].size or 0
        blob = (lfs.sha256 if lfs else found[name].blob_id) or ""
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
    places = [folder / "snapshots" / commit / name]
    places += [folder / "blobs" / blob] if blob else []
    if any(is_whole(path, size) for path in places):
        return size
    partial = folder / "blobs" / (blob + INCOMPLETE)
    return min(partial.stat().st_size, size) if blob and partial.exists() else 0


def download(repo: str, on_download: Progress | None = None) -> Path:
    """Download what the cache lacks of a model's latest revision. Returns its folder in the cache.

    `on_download(done, total)` is called with counts of bytes, from any thread. Raises DFlashError
    if the download fails; the bytes received so far stay in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import build_hf_headers
    from tqdm.auto import tqdm

    class Silent(tqdm):
        """A progress bar without output."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})

    with dflash_errors(repo):
        found = request_plan(repo)
        check_room(found)
        done = found.total_bytes - found.missing_bytes

        def count(more: int) -> None:
            nonlocal done
            done += more
            if on_download:
                on_download(done, found.total_bytes)

        count(0)
        incomplete = [file for file in found.files if file.cached < file.size and file.blob]
        if incomplete:
            headers = build_hf_headers(library_name="dflash-chat")
            Transfer(repo_folder(repo) / "blobs", headers, count).run(incomplete)
        folder = Path(
            snapshot_download(
                repo,
                allow_patterns=[file.name for file in found.files],
                tqdm_class=Silent,
            )
        )
        count(found.total_bytes - done)
        if what := first_missing_file(folder):
            raise DFlashError(
                f"'{repo}' is not whole on the Hub: {what} is missing or damaged.",
                hint="`dflash models list` shows models that are",
            )
        return folder


def check_room(*plans: Plan) -> None:
    """Raise DFlashError if the disk has not enough free space for the missing files."""
    needed = sum(found.missing_bytes for found in plans)
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + RESERVED_BYTES > free:
        names = " and ".join(f"'{found.repo}'" for found in plans)
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
        if (shown := to_dflash_error(error, repo)) is error:
            raise
        raise shown from error
    finally:
        logging.set_verbosity(before)
