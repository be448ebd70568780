"""Whether the files of a cached model have the content that their names promise.

The Hub's cache names a blob after its hash. A bad disk or another program may have changed bytes
and not the length, so that only the hash tells.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dflash_mlx.files.folder import matching
from dflash_mlx.types import Progress, silent

HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
CHUNK_BYTES = 1 << 20


def blobs_of(folder: Path) -> dict[str, Path]:
    """The blobs of a cached revision by the names of their files.

    Files that are no links to a blob are left out: nothing tells what their content should be.
    """
    blobs = {path.name: path.resolve() for path in matching(folder) if path.is_symlink()}
    return {name: blob for name, blob in blobs.items() if HASH.fullmatch(blob.name)}


def damaged_files(blobs: Mapping[str, Path], on_check: Progress = silent) -> list[str]:
    """The names of the files whose blob has another content than its own name promises.

    `on_check(done, total)` is called with counts of bytes. A blob that does not exist is missing
    and not damaged.
    """
    present = {name: blob for name, blob in blobs.items() if blob.exists()}
    sizes = {name: blob.stat().st_size for name, blob in present.items()}
    total = sum(sizes.values())
    damaged = []
    before = 0
    for name, blob in present.items():

        def on_read(done: int, before: int = before) -> None:
            on_check(before + done, total)

        if hash_of(blob, len(blob.name), on_read) != blob.name:
            damaged.append(name)
        before += sizes[name]
    return damaged


def hash_of(path: Path, digits: int, on_read: Callable[[int], None] = lambda done: None) -> str:
    """In hex: sha256 for 64 digits, else git's sha1 of a blob. `on_read` gets the bytes read."""
    sha256 = digits == 64
    digest = hashlib.sha256() if sha256 else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    done = 0
    with path.open("rb") as stream:
        while data := stream.read(CHUNK_BYTES):
            digest.update(data)
            done += len(data)
            on_read(done)
    return digest.hexdigest()
