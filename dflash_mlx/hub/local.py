"""The targets on this machine: in the Hub's cache, in LM Studio's folder, and in other folders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import DFlashError
from dflash_mlx.families import FAMILIES
from dflash_mlx.files.checkpoint import Checkpoint

from .cache import cached_folder, cached_repos, missing_file

LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")
DEPTH = 3  # folders below one that holds models: publisher, model, and one more


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A target on this machine.

    name: its Hub id, or its path below the folder of models. source: what `dflash_mlx.load` takes.
    folder: its files. lacks: why it cannot run, as a clause; empty if it can.
    """

    name: str
    source: str
    folder: Path
    lacks: str = ""


def local_models(folders: Sequence[Path] = ()) -> list[LocalModel]:
    """All targets of the Hub's cache, then those of LM Studio and of `folders`, by name.

    Of two with the same name only the first is listed. Drafters are left out.
    """
    found: dict[str, LocalModel] = {}
    for model in (*in_cache(), *in_folders(folders)):
        found.setdefault(model.name, model)
    return list(found.values())


def in_cache() -> Iterator[LocalModel]:
    """The targets that the Hub's cache holds completely."""
    for repo in cached_repos():
        folder = cached_folder(repo)
        if folder is not None and (model := model_in(folder, repo, repo)):
            yield model


def in_folders(folders: Sequence[Path]) -> Iterator[LocalModel]:
    """The targets of LM Studio's folder and of `folders`."""
    for start in (*(Path(name).expanduser() for name in LM_STUDIO), *folders):
        for folder in model_folders(start):
            name = folder.relative_to(start).as_posix() if folder != start else start.name
            if model := model_in(folder, name, str(folder)):
                yield model


def model_folders(start: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The folders at or below `start` that hold a model, sorted; nothing if it cannot be read."""
    try:
        entries = sorted(start.iterdir())
    except OSError:
        return
    if any(entry.name == "config.json" or entry.suffix == ".gguf" for entry in entries):
        yield start
        return
    for entry in entries:
        if depth and entry.is_dir() and not entry.name.startswith("."):
            yield from model_folders(entry, depth - 1)


def model_in(folder: Path, name: str, source: str) -> LocalModel | None:
    """The target in a folder; None for a drafter."""
    if not (folder / "config.json").exists():
        return LocalModel(name, source, folder, "is a GGUF file, which mlx-lm does not read")
    try:
        checkpoint = Checkpoint.read(folder, name)
        if checkpoint.format != "language model":
            return None
        kind = checkpoint.text_config.get("model_type")
        missing = missing_file(checkpoint)
    except DFlashError as error:
        return LocalModel(name, source, folder, f"cannot be read ({error.message.rstrip('.')})")
    if kind not in FAMILIES:
        return LocalModel(name, source, folder, f"is of the type '{kind}', which is not supported")
    if missing:
        return LocalModel(name, source, folder, f"is not complete ('{missing}' is missing)")
    return LocalModel(name, source, folder)
