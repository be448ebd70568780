"""The record of a training run: the flags that it was begun with, for --resume.

Knows flags and files, not what they do in training.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.user_cache import replace_json

from ..option_sources import option_source

NOT_KEPT = {"folder", "resume", "forecast", "quiet", "plain"}
# Flags that change no step of the run.
MAY_CHANGE = {
    "answer_batch", "trust_remote_code", "eval_every", "save_every", "save_minutes",
    "cache_taps", "taps_folder", "dtype",
}  # fmt: skip
# Compared by their content, so that they may be moved: a file, a file, a folder or a Hub id.
FILES = ("prompts", "val", "model")
PATHS = ("prompts", "val", "answers", "taps_folder", "warm_start")


class Record:
    """The file run.json in the folder of a run."""

    def __init__(self, folder: Path):
        self.folder, self._file = folder, folder / "run.json"

    def values_to_resume(self, ctx: typer.Context) -> dict[str, Any]:
        """The values of all parameters: the run's own, and what was given now and may change.

        Raises UsageError, which names both values, if a flag was given that the run has otherwise;
        DFlashError without a run.
        """
        kept = self._read()["flags"]
        given = {
            name: value
            for name, value in flags_of(ctx.params).items()
            if option_source(ctx, name) == "COMMANDLINE"
        }
        self._refuse(
            f"{flag(ctx, name)} {kept.get(name)}, not {value}"
            for name, value in given.items()
            if name not in (*MAY_CHANGE, *FILES) and kept.get(name) != value
        )
        return {**ctx.params, **kept, **given}

    def check_files(self, values: dict[str, Any], target: Path) -> None:
        """Raise UsageError for prompts or a target (its folder) that the run did not begin with."""
        read = self._read()
        now = digests(values, target)
        self._refuse(
            f"other contents of '{values[name]}'"
            if values[name] == read["flags"][name]
            else f"{name} {read['flags'][name]}, not {values[name]}"
            for name in FILES
            if now[name] != read["files"][name]
        )

    def write(self, values: dict[str, Any], target: Path) -> None:
        """Keep the flags and the digests of the files they name, and of the target's folder."""
        replace_json(self._file, {"flags": flags_of(values), "files": digests(values, target)})

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DFlashError(
                f"there is no run in '{self.folder}'.", hint="leave --resume out"
            ) from None
        except (OSError, ValueError):
            raise DFlashError(
                f"the file '{self._file}' cannot be read.", hint="give another --out"
            ) from None

    def _refuse(self, differences: Any) -> None:
        if text := "; ".join(differences):
            raise UsageError(
                f"the run in '{self.folder}' has {text}.",
                hint="leave that out: --resume goes on with the run's own; or give another --out",
            )


def flags_of(values: dict[str, Any]) -> dict[str, Any]:
    """The values to keep, with paths that hold from any folder, as JSON knows them."""
    kept = {name: value for name, value in values.items() if name not in NOT_KEPT}
    for name in PATHS:
        if kept[name] is not None:
            kept[name] = str(Path(kept[name]).expanduser().resolve())
    if kept["model"] is not None and Path(kept["model"]).expanduser().is_dir():
        kept["model"] = str(Path(kept["model"]).expanduser().resolve())
    return kept


def digests(values: dict[str, Any], target: Path) -> dict[str, str]:
    """A digest of each of FILES; empty for a file that was not given or is not there."""
    from dflash_mlx.train.answers import fingerprint

    found = {"model": fingerprint(target)}
    for name in ("prompts", "val"):
        path = values[name] and Path(values[name])
        there = path and path.is_file()
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if there else ""
    return found


def flag(ctx: typer.Context, name: str) -> str:
    """A parameter as it is written on the command line."""
    parameter = next(p for p in ctx.command.params if p.name == name)
    return max(parameter.opts, key=len)
