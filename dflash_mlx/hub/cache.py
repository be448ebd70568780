"""Models in the local huggingface_hub cache: which ones, whether each is complete, and their sizes.

This module never contacts the Hub. A model is complete when every file that loading needs exists
and has its full length. An incomplete revision is never returned for loading.

A model may be named `owner/model#mtp`: only its MTP head, which is in one or two of many shards.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import (
    TEXTS,
    WEIGHT_INDEX,
    Checkpoint,
    fault_of,
    weight_files,
)
from dflash_mlx.files.folder import SIDECAR, matching
from dflash_mlx.files.formats import MTP_TENSOR
from dflash_mlx.types import Progress, silent

# `allow_patterns` and `ignore_patterns` of huggingface_hub: files of a repository's top folder.
# Some tokenizers are Python code; a download does not run it.
TEXT_PATTERNS = [
    "*.json", "*.jinja", "*.txt", "tokenizer.model", "tiktoken.model", "*.tiktoken", "*.py"
]  # fmt: skip
ALLOW_PATTERNS = ["*.safetensors", *TEXT_PATTERNS]
IGNORE_PATTERNS = ["*/*", f"{SIDECAR}*"]
INCOMPLETE = ".dflash.incomplete"  # suffix of a blob during its download
HEAD_ONLY = "#mtp"  # behind a model's Hub id
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
CHUNK_BYTES = 1 << 20


def cache_folder() -> Path:
    """The folder of the huggingface_hub cache (`HF_HUB_CACHE`). The folder may not exist."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def is_head_only(name: str) -> bool:
    return name.endswith(HEAD_ONLY)


def repo_of(name: str) -> str:
    return name.removesuffix(HEAD_ONLY)


def repo_folder(repo: str) -> Path:
    """The cache folder of the repository of a model. The folder may not exist."""
    return cache_folder() / f"models--{repo_of(repo).replace('/', '--')}"


def cached_folder(repo: str) -> Path | None:
    """The folder of the latest cached revision if it is complete, else None."""
    checkpoint = cached_checkpoint(repo)
    return None if checkpoint is None else checkpoint.path


def cached_checkpoint(repo: str) -> Checkpoint | None:
    """The latest cached revision if it is complete, else None."""
    folder = latest_revision(repo)
    if folder is None:
        return None
    try:
        checkpoint = Checkpoint.read(folder, repo)
    except DFlashError:
        return None
    return None if missing_file(checkpoint, head_only=is_head_only(repo)) else checkpoint


def latest_revision(repo: str) -> Path | None:
    """The folder of the revision that `main` points to in the cache, complete or not.

    None if huggingface_hub finds no such revision, or knows that a file is missing.
    """
    if not repo_folder(repo).is_dir():
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repo_of(repo),
                local_files_only=True,
                allow_patterns=TEXT_PATTERNS if is_head_only(repo) else ALLOW_PATTERNS,
                ignore_patterns=IGNORE_PATTERNS,
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def first_missing_file(folder: Path, *, head_only: bool = False) -> str:
    """The name of the first absent or truncated file of a model folder; empty if complete."""
    try:
        return missing_file(Checkpoint.read(folder), head_only=head_only)
    except DFlashError:
        return "config.json"


def missing_file(checkpoint: Checkpoint, *, head_only: bool = False) -> str:
    """`first_missing_file` of a folder whose config.json was read."""
    folder = checkpoint.path
    for path in matching(folder, "**/*"):
        is_text = path.parent == folder and path.suffix in TEXTS
        if not path.exists() or (is_text and fault_of(path)):  # a deleted blob, a pointer
            return path.name
    try:
        if head_only:
            files = weight_files(folder, "*.safetensors", MTP_TENSOR.match)
        else:
            files = weight_files(folder, checkpoint.weight_pattern)
    except DFlashError:
        return WEIGHT_INDEX
    for file in files:
        try:
            checkpoint.headers_of([file])
        except DFlashError:
            return file.name
    if not files:
        return "*.safetensors"
    if checkpoint.format != "language model" or head_only:
        return ""
    if not checkpoint.has_tokenizer:
        return "tokenizer.json"
    try:
        code = checkpoint.tokenizer_code
    except DFlashError:
        return "tokenizer_config.json"
    return next((name for name in code if "/" not in name and not (folder / name).exists()), "")


def blobs_of(folder: Path) -> dict[str, Path]:
    """The blobs of a cached revision by the names of their files.

    Files that are no links to a blob are left out: nothing tells what their content should be.
    """
    blobs = {path.name: path.resolve() for path in matching(folder) if path.is_symlink()}
    return {name: blob for name, blob in blobs.items() if HASH.fullmatch(blob.name)}


def damaged_files(blobs: Mapping[str, Path], on_check: Progress = silent) -> list[str]:
    """The names of the files whose blob has another content than its own name promises.

    A bad disk or another program may change bytes and not the length. `on_check(done, total)` is
    called with counts of bytes. A blob that does not exist is missing and not damaged.
    """
    present = {name: blob for name, blob in blobs.items() if blob.exists()}
    total = sum(blob.stat().st_size for blob in present.values())
    done = 0

    def on_read(count: int) -> None:
        nonlocal done
        done += count
        on_check(done, total)

    return [
        name
        for name, blob in present.items()
        if hash_of(blob, len(blob.name), on_read) != blob.name
    ]


def hash_of(path: Path, digits: int, on_read: Callable[[int], None] = lambda count: None) -> str:
    """In hex: sha256 for 64 digits, else git's sha1 of a blob. `on_read` gets counts of bytes."""
    sha256 = digits == 64
    digest = hashlib.sha256() if sha256 else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as stream:
        while data := stream.read(CHUNK_BYTES):
            digest.update(data)
            on_read(len(data))
    return digest.hexdigest()


def cached_state(repo: str) -> Literal["yes", "partly", "no"]:
    if cached_folder(repo) is not None:
        return "yes"
    return "partly" if cached_bytes(repo) else "no"


def cached_bytes(repo: str) -> int:
    """The bytes of one model in the cache, incomplete files included."""
    blobs = matching(repo_folder(repo), "blobs/*")
    return sum(path.stat().st_size for path in blobs if path.exists())


def cached_repos() -> list[str]:
    """The sorted Hub ids of the cached models that have weight files, complete or not."""
    return repos_with("snapshots/*/*.safetensors", f"blobs/*{INCOMPLETE}")


def cached_gguf() -> list[str]:
    """The sorted Hub ids of the cached models that are GGUF files only."""
    others = set(cached_repos())
    return [repo for repo in repos_with("snapshots/*/*.gguf") if repo not in others]


def repos_with(*patterns: str) -> list[str]:
    return [
        folder.name.removeprefix("models--").replace("--", "/", 1)
        for folder in matching(cache_folder(), "models--*--*")
        if any(matching(folder, pattern) for pattern in patterns)
    ]


def remove(repo: str) -> int:
    """Delete a model. Returns the bytes freed. Raises DFlashError if that is not possible."""
    from huggingface_hub import scan_cache_dir

    folder = repo_folder(repo)
    size = cached_bytes(repo)
    try:
        # huggingface_hub keeps blobs that other models share. Only this repository: a copy under
        # another name may have revisions with the same hashes.
        cache = scan_cache_dir(cache_folder())
        repos = frozenset(
            entry
            for entry in cache.repos
            if (entry.repo_type, entry.repo_id) == ("model", repo_of(repo))
        )
        hashes = [revision.commit_hash for entry in repos for revision in entry.revisions]
        replace(cache, repos=repos).delete_revisions(*hashes).execute()
        if folder.is_dir():
            shutil.rmtree(folder)
        shutil.rmtree(cache_folder() / ".locks" / folder.name, ignore_errors=True)
    except OSError as error:
        raise DFlashError(
            f"'{repo}' could not be deleted ({error.strerror}).",
            hint=f"check who may write in '{folder}'",
        ) from error
    return size
