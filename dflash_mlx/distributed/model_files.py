"""The target's files on each machine, and the check that versions and files are the same."""

import hashlib
from pathlib import Path

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.cache import cached_folder
from dflash_mlx.hub.resolve import BUNDLED, bundled, fetch, is_hub_id

# Where a rank finds a target on its own machine


def own_folder(name: str) -> Path:
    """The folder of a target on this machine, by Hub id, path or "bundled".

    Raises DFlashError if it is missing.
    """
    if name == BUNDLED:
        return bundled("target")
    if not is_hub_id(name):
        return fetch(name)
    if (folder := cached_folder(name)) is None:
        raise DFlashError(
            f"'{name}' is not on this machine, or not all of it.",
            hint=f"run `dflash models pull {name} --no-draft` there",
        )
    return folder


# The version check

SAMPLES = 64  # per file
SAMPLE = 1 << 15  # bytes
ModelFacts = dict[str, str]


def versions() -> ModelFacts:
    """The versions of our and MLX's packages."""
    from importlib.metadata import version  # slow to import

    return {"dflash": __version__, **{name: version(name) for name in ("mlx", "mlx-lm")}}


def facts_of(path: Path) -> ModelFacts:
    """Versions of packages, sizes of weight files, and the config of a model here."""
    facts = versions()
    for file in sorted(path.glob("*.safetensors")):
        facts[file.name] = f"{file.stat().st_size:,} bytes"
    facts["config.json"] = (path / "config.json").read_text(encoding="utf-8")
    return facts


def samples_of(path: Path) -> ModelFacts:
    """A hash of samples of each weight file, from its beginning to its end."""
    samples = {}
    for file in sorted(path.glob("*.safetensors")):
        hashed = hashlib.sha256()
        size = file.stat().st_size
        step = max(SAMPLE, size // SAMPLES)
        with file.open("rb") as stream:
            for place in (*range(0, size, step), max(0, size - SAMPLE)):
                stream.seek(place)
                hashed.update(stream.read(SAMPLE))
        samples[f"{file.name}, sampled"] = hashed.hexdigest()[:12]
    return samples


def check_same(own: ModelFacts, leader: ModelFacts) -> None:
    """Raise DFlashError that names the first difference between a rank and rank 0."""
    for name in (*leader, *own):
        here = own.get(name, "none")
        there = leader.get(name, "none")
        if here != there and name == "config.json":
            raise DFlashError(
                "its config.json differs from rank 0's.", hint="copy the same model to all machines"
            )
        if here != there:
            raise DFlashError(
                f"it has {name}: {here}, and rank 0 has {there}.",
                hint="install the same versions, and copy the same model, on all machines",
            )
