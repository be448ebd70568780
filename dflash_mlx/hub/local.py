"""The targets on this machine: in the Hub's cache, in LM Studio's folder, and in other folders."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, fault_of
from dflash_mlx.files.folder import matching

from .cache import (
    cached_folder,
    cached_gguf,
    cached_repos,
    cached_state,
    missing_file,
    repo_folder,
)
from .kinds import refused_kind
from .openable import facts_of, hint_for, lacks
from .registry import OPTIONAL, find_target, is_short_for, similar_targets, words

LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")
DEPTH = 3  # folders below one that holds models: publisher, model, and one more
TEMPLATES = ("chat_template.jinja", "chat_template.json")
GGUF = "is a GGUF file, which mlx-lm does not read"
# Words of a folder's name that a short name may leave out: also the format and its bits.
LEFT_OUT = re.compile(rf"{OPTIONAL.pattern}|mlx|gguf|dwq|awq|\d+bit|bf16|fp16|mxfp\d|nvfp\d|q\d+")


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
    """The targets that the Hub's cache holds completely, and its GGUF files."""
    for repo in cached_repos():
        folder = cached_folder(repo)
        if folder is not None and (model := model_in(folder, repo, repo)):
            yield model
    for repo in cached_gguf():
        yield LocalModel(repo, repo, repo_folder(repo), GGUF)


def in_folders(folders: Sequence[Path]) -> Iterator[LocalModel]:
    for start in (*(Path(name).expanduser() for name in LM_STUDIO), *folders):
        for folder in model_folders(start):
            name = folder.relative_to(start).as_posix() if folder != start else start.name
            if model := model_in(folder, name, str(folder)):
                yield model


def model_folders(start: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The folders at or below `start` that hold a model, sorted; nothing if it cannot be read."""
    entries = matching(start)
    if any(entry.name == "config.json" or entry.suffix == ".gguf" for entry in entries):
        yield start
        return
    for entry in entries:
        if depth and entry.is_dir() and not entry.name.startswith("."):
            yield from model_folders(entry, depth - 1)


def model_in(folder: Path, name: str, source: str) -> LocalModel | None:
    """The target in a folder; None for a drafter."""
    if not (folder / "config.json").exists():
        return LocalModel(name, source, folder, GGUF)
    try:
        checkpoint = Checkpoint.read(folder, name)
        if checkpoint.format != "language model" or refused_kind(checkpoint.config):
            return None
        missing = missing_file(checkpoint)
        reason = lacks(*facts_of(checkpoint))
        if not missing:
            _ = checkpoint.weight_files
    except DFlashError as error:
        return LocalModel(name, source, folder, f"cannot be read ({error.message.rstrip('.')})")
    if missing and not reason:
        reason = f"is not complete ('{missing}' {fault_of(folder / missing) or 'is damaged'})"
    return LocalModel(name, source, folder, reason)


def can_chat(folder: Path) -> bool:
    if any((folder / name).exists() for name in TEMPLATES):
        return True
    try:
        settings = Checkpoint.read(folder).tokenizer_config
    except DFlashError:
        return False
    return bool(settings.get("chat_template") or settings.get("chat_template_type"))


def find_model(name: str, folders: Sequence[Path] = ()) -> str | None:
    """What `dflash_mlx.load` takes for a name: a Hub id, or the path of a model on this machine.

    A model that is here comes before one that would be downloaded, and the Hub's cache before
    folders. None for a path, and for a name that means nothing here: it may be a Hub id. Raises
    DFlashError if several models here have the name, or if the only one cannot run; a folder that
    cannot is not passed over for a download of the same model.
    """
    if not name or name.startswith((".", "~", "/")) or Path(name).exists():
        return None
    known = find_target(name)
    if cached_state(known or name) == "yes":
        return known
    meant = {name.lower(), (known or name).lower()}
    named = [
        model
        for model in local_models(folders)
        if is_named(name, model.name) or model.name.lower() in meant
    ]
    usable = [model for model in named if not model.lacks]
    if len(usable) > 1:
        raise DFlashError(
            f"'{name}' may be {' or '.join(model.name for model in usable)}.",
            hint="give the whole name of one of them",
        )
    if usable:
        return usable[0].source
    for model in named:
        if known is None:
            raise DFlashError(f"'{model.name}' {model.lacks}.", hint=hint_for(model.name))
        if model.name.lower() == known.lower():
            raise DFlashError(
                f"'{model.source}' {model.lacks}.",
                hint=f"complete it, or `dflash models pull {known}` gets it from the Hub",
            )
    return known


def is_named(name: str, model: str) -> bool:
    """Whether a model has this name, or this is short for it; the case of letters is ignored."""
    if "/" in name or name.lower() == model.lower():
        return name.lower() == model.lower()
    return bool(words(name)) and is_short_for(words(name), words(model), LEFT_OUT)


def did_you_mean(name: str) -> str:
    """A question with the nearest targets of the table and of this machine; empty without any."""
    here = (model.name for model in local_models() if not model.lacks)
    targets = similar_targets(name, here)
    return f"did you mean {' or '.join(targets)}?" if targets else ""
