"""What has to be the same on all ranks: versions, the config, names and sizes of a model's files.

The files' contents are not read: that would take as long as loading them.
"""

from importlib.metadata import version
from pathlib import Path

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError

Facts = dict[str, str]


def facts_of(path: Path) -> Facts:
    """What this rank has: "mlx" and others with their versions, each file with its size."""
    found = {"dflash": __version__, **{name: version(name) for name in ("mlx", "mlx-lm")}}
    for file in sorted(path.glob("*.safetensors")):
        found[file.name] = f"{file.stat().st_size:,} bytes"
    found["config.json"] = (path / "config.json").read_text(encoding="utf-8")
    return found


def check_same(own: Facts, leader: Facts) -> None:
    """DFlashError that names the first difference between a rank's facts and rank 0's."""
    for name in (*leader, *own):
        here, there = own.get(name, "none"), leader.get(name, "none")
        if here != there and name == "config.json":
            raise DFlashError(
                "its config.json differs from rank 0's.", hint="copy the same model to all machines"
            )
        if here != there:
            raise DFlashError(
                f"it has {name}: {here}, and rank 0 has {there}.",
                hint="install the same versions, and copy the same model, on all machines",
            )
