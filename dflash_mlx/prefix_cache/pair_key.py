"""The key of a pair's folder: it changes with all that the content of its files depends on.

Of weights the name, size, time of change, header and samples of each file are looked at; reading
all of them would take as long as loading. So the key notices every other model and every changed
file, but not a change of the same size under the same time that spares all samples.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.target.target import Target

from .entry import FORMAT

SAMPLES, SAMPLE = 32, 1 << 14  # of each file, and bytes


def pair_key(target: Target, folder: Path | None, draft: nn.Module | None) -> str:
    """The key of a loaded target and of a drafter from a folder, None where there is none."""
    kernels = target.kernels
    parameters: Any = [] if draft is None else tree_flatten(draft.parameters())
    own = sorted(kernels.on or ()) if kernels.exact else ()  # elsewhere the last bits are free
    parts = [
        FORMAT,
        *fingerprint(target.path),
        *([] if folder is None else fingerprint(folder)),
        repr([(name, v.shape, v.dtype) for name, v in parameters]),
        repr((mx.default_device(), target.head_type, kernels.exact, own)),
        *map(version, ("mlx", "mlx-lm", "dflash-chat")),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def fingerprint(folder: Path) -> list[str]:
    """A line for each file of a model that its numbers come from."""
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    return [f"{file.name} {digest(file)}" for file in files]


def digest(file: Path) -> str:
    """Size, time of change, and a hash of samples from beginning to end."""
    about, hashed = file.stat(), hashlib.sha256()
    with file.open("rb") as stream:
        step = max(SAMPLE, (about.st_size - SAMPLE) // (SAMPLES - 1))
        for place in (*range(0, about.st_size - SAMPLE, step), max(0, about.st_size - SAMPLE)):
            stream.seek(place)
            hashed.update(stream.read(SAMPLE))
    return f"{about.st_size} {about.st_mtime_ns} {hashed.hexdigest()}"
