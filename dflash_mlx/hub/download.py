"""A model from the Hub: how big it is, whether there is room, and the download itself.

Bytes are `transfer`'s; the cache's layout is left to the Hub's own client.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError

from .cache import PART, UNWANTED, WANTED, cache_folder, missing, repo_folder
from .faults import explain
from .transfer import File, Transfer, is_whole

Progress = Callable[[int, int], None]
TIMEOUT = 20.0  # seconds for an answer
ROOM = 64 << 20  # bytes that a download leaves free on the disk


@dataclass(frozen=True, slots=True)
class Plan:
    """What a download would fetch."""

    repo: str
    files: tuple[File, ...]

    @property
    def total_bytes(self) -> int:
        """The whole model."""
        return sum(file.size for file in self.files)

    @property
    def missing_bytes(self) -> int:
        """What is not here yet."""
        return sum(file.size - file.have for file in self.files)

    @property
    def cached(self) -> bool:
        """Whether there is nothing to fetch."""
        return self.missing_bytes == 0


def plan(repo: str) -> Plan:
    """Ask the Hub for a model's newest files; nothing is downloaded.

    DFlashError when the Hub refuses or cannot be reached, or when no model is there.
    """
    with faults(repo):
        return ask(repo)


def ask(repo: str) -> Plan:
    """The plan; raises what the Hub's client raises."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import filter_repo_objects

    # snapshot_download(dry_run=True) would send one request a file and move the cache's `main`
    # to a version that is not there yet.
    info = HfApi().model_info(repo, files_metadata=True, timeout=TIMEOUT)
    found = {s.rfilename: s for s in info.siblings or []}
    names = list(filter_repo_objects(found, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    for what, there in (
        ("config.json", "config.json" in names),
        ("safetensors", any(name.endswith(".safetensors") for name in names)),
    ):
        if not there:
            raise DFlashError(
                f"'{repo}' has no {what} file.",
                hint="give a model with safetensors weights, not GGUF or PyTorch files",
            )
    folder, commit = repo_folder(repo), str(info.sha)
    files = []
    for name in names:
        lfs, size = found[name].lfs, found[name].size or 0
        blob = (lfs.sha256 if lfs else found[name].blob_id) or ""
        url = hf_hub_url(repo, name, revision=commit)
        files.append(File(name, url, size, blob, here(folder, commit, name, blob, size)))
    plan = Plan(repo, tuple(sorted(files, key=lambda file: (file.size, file.name))))
    if not plan.cached:  # a licence is asked for at the files, not at the list of them
        get_hf_file_metadata(plan.files[0].url, timeout=TIMEOUT)
    return plan


def here(folder: Path, commit: str, name: str, blob: str, size: int) -> int:
    """Bytes of one file that the cache has; a file of another length is damaged and counts none."""
    places = [folder / "snapshots" / commit / name]
    places += [folder / "blobs" / blob] if blob else []
    if any(is_whole(path, size) for path in places):
        return size
    part = folder / "blobs" / (blob + PART)
    return min(part.stat().st_size, size) if blob and part.exists() else 0


def download(repo: str, on_download: Progress | None = None) -> Path:
    """Fetch a model's newest version, as far as it is not here; its folder in the Hub's cache.

    `on_download(done, total)` counts bytes, from any thread. DFlashError says what went wrong; what
    has arrived by then stays.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import build_hf_headers
    from tqdm.auto import tqdm

    class Silent(tqdm):
        """Draws nothing."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})

    with faults(repo):
        found = ask(repo)
        check_room(found)
        done = found.total_bytes - found.missing_bytes

        def count(more: int) -> None:
            nonlocal done
            done += more
            if on_download:
                on_download(done, found.total_bytes)

        count(0)
        wanted = [file for file in found.files if file.have < file.size and file.blob]
        if wanted:
            headers = build_hf_headers(library_name="dflash-chat")
            Transfer(repo_folder(repo) / "blobs", headers, count).run(wanted)
        folder = Path(
            snapshot_download(
                repo, allow_patterns=WANTED, ignore_patterns=UNWANTED, tqdm_class=Silent
            )
        )
        count(found.total_bytes - done)
        if what := missing(folder):
            raise DFlashError(
                f"'{repo}' is not whole on the Hub: {what} is missing or damaged.",
                hint="`dflash models list` shows models that are",
            )
        return folder


def check_room(*plans: Plan) -> None:
    """DFlashError when the disk is too small for what is missing."""
    wanted = sum(found.missing_bytes for found in plans)
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if wanted and wanted + ROOM > free:
        names = " and ".join(f"'{found.repo}'" for found in plans)
        raise DFlashError(
            f"there is no room for {names}: {wanted / 1e9:.1f} GB are missing, and "
            f"'{folder}' has {free / 1e9:.1f} GB free.",
            hint="delete a model with `dflash models rm`, or set HF_HOME to another disk",
        )


@contextmanager
def faults(repo: str) -> Iterator[None]:
    """Errors become DFlashErrors; the Hub's client writes no warnings of its own meanwhile."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except Exception as error:
        if (shown := explain(error, repo)) is error:
            raise
        raise shown from error
    finally:
        logging.set_verbosity(before)
