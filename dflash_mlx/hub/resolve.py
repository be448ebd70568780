"""Finds the local folder of a model by its name, and the drafter of a target."""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from dflash_mlx.address import is_address, is_bare_address, model_name
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.model_types import is_known
from dflash_mlx.types import Progress

from . import choices, registry
from .cache import cached_checkpoint
from .download import download
from .kinds import MTP, REFUSED, kind_error
from .local import did_you_mean

BUNDLED = "bundled"
LOOKUP = "lookup"  # the name of prompt lookup, a drafter without a model


@dataclass(frozen=True, slots=True)
class Names:
    """The folders or Hub ids of a pair, and their labels in messages; None without a drafter.

    Prompt lookup has the label `LOOKUP` and no folder, the target's own head the label `MTP`.
    """

    target: str | Path
    target_label: str
    draft: str | Path | None
    draft_label: str | None

    @property
    def lookup(self) -> bool:
        return self.draft is None and self.draft_label == LOOKUP

    @property
    def own_head(self) -> bool:
        return self.draft_label == MTP


def bundled(part: str) -> Path:
    """The folder of the bundled "target" or "draft". Raises DFlashError if it is not installed."""
    with as_file(files("dflash_mlx.bundled")) as folder:
        if not (folder / part).is_dir():
            raise DFlashError(
                "the bundled pair is missing from this installation.",
                hint="run `make setup` in the clone again, or name a model with --model",
            )
        return folder / part


def pair_names(
    target: str | Path | None, draft: str | Path | None, *, no_draft: bool = False
) -> Names:
    """The names of the pair to load; without `target` the bundled pair.

    Without `draft` and `no_draft` the drafter is the one that a comparison on this machine found
    best, else the best one in the registry, or prompt lookup where none is known. The draft `MTP`
    is the target's own head, or the one that the registry names for a conversion without it. Raises
    DFlashError if the registry says that the target is not supported, UsageError if both `draft`
    and `no_draft` are given.
    """
    if no_draft and draft is not None:
        raise UsageError(
            "a drafter and no_draft contradict each other.", hint="leave one of them out"
        )
    target = model_name(target) if isinstance(target, str) else target
    draft = model_name(draft) if isinstance(draft, str) else draft
    source = bundled("target") if target is None else target
    label = BUNDLED if target is None else str(target)
    if no_draft:
        return Names(source, label, None, None)
    if draft is None and target is None:
        return Names(source, label, bundled("draft"), BUNDLED)
    if draft is None:
        choice = measured_choice(label)
        draft = choice.draft if choice is not None else known_drafter(label) or LOOKUP
        if not draft:
            return Names(source, label, None, None)
    elif draft == MTP:
        draft = head_of(label)
    else:
        entries = registry.entries()
        entry = next((e for e in entries if e.draft == str(draft) and not e.own_head), None)
        if entry is not None and entry.kind in REFUSED:
            raise kind_error(str(draft), REFUSED[entry.kind])
    if draft == LOOKUP:
        return Names(source, label, None, LOOKUP)
    return Names(source, label, source if draft == MTP else draft, str(draft))


def measured_choice(target: str) -> choices.Choice | None:
    """What `dflash bench --drafts all` found best for a target here, if it is still here."""
    choice = choices.find(target, lambda: config_of(target))
    if choice is None or choice.draft in ("", LOOKUP, MTP) or config_of(choice.draft):
        return choice
    return None


def origin_of(target: str, draft: str | None) -> str:
    """Why a target has this drafter, in a few words. None: plain decoding."""
    choice = measured_choice(target)
    if choice is not None and choice.draft == (draft or ""):
        return choice.reason
    entry = registry.find(target)
    if entry is None or not entry.supported or not entry.draft:
        return ""
    if draft == (MTP if entry.own_head else entry.draft):
        return "the best known for this target; `dflash bench --drafts all` compares"
    return ""


def known_drafter(target: str) -> str | None:
    """The best drafter of a target that this version loads: a Hub id, or `MTP` for its own head.

    None if the registry lists none. Raises DFlashError if it lists the target, and this version
    does not support it.
    """
    entry = registry.find(target)
    if entry is None:
        return None
    if not is_known(entry.family):
        raise DFlashError(
            f"the pair of '{target}' and '{entry.draft}' cannot run: {entry.lacks}.",
            hint="`dflash models list` shows the pairs that run",
        )
    if not entry.supported:
        return None
    return MTP if entry.own_head else entry.draft or None


def head_of(target: str) -> str:
    """The Hub id of a target's MTP head that somebody split from it; else `MTP`, its own head.

    Only conversions that leave the head out need another repository for it.
    """
    heads = (e for e in registry.pairs_of(target) if e.kind == MTP and not e.own_head)
    return next((entry.draft for entry in heads), MTP)


def open_checkpoint(
    name: str | Path, label: str = "", on_download: Progress | None = None
) -> Checkpoint:
    """A model; `label` is its name in messages.

    Downloads a Hub id unless its cached revision is complete; that is used without a check for a
    newer one (`dflash models pull` checks). `on_download(done, total)` is called with counts of
    bytes. Raises DFlashError if there is no such folder, if its config.json is damaged, or if the
    download fails.
    """
    folder = local_folder(name)
    if folder is None and (cached := cached_checkpoint(str(name))) is not None:
        return cached
    return Checkpoint.read(folder or download(str(name), on_download), label)


def is_here(name: str | Path) -> bool:
    return Path(name).is_dir() or cached_checkpoint(str(name)) is not None


def local_folder(name: str | Path) -> Path | None:
    """The folder with this name; None for a Hub id. Raises DFlashError for any other name."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf" and path.is_file():
        raise DFlashError(
            f"'{name}' is a GGUF file, and a folder is needed.",
            hint="examples/recipes/real_models/install.py in the clone makes one of some",
        )
    if is_address(str(name)) or is_bare_address(str(name)):
        raise DFlashError(
            f"'{name}' is a server's address, not a model.",
            hint="`dflash chat` and `dflash generate` take one as --model, with http:// in front",
        )
    text = str(name)
    if text.startswith((".", "/", "~")) or text.count("/") != 1 or not isinstance(name, str):
        raise DFlashError(
            f"there is no {'folder' if '/' in text else 'model or folder'} '{name}'.",
            hint=did_you_mean(text) or "give a folder, or a Hub id such as Qwen/Qwen3-4B",
        )
    return None


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a model on this machine; empty if there is none."""
    path = Path(name).expanduser()
    try:
        checkpoint = Checkpoint.read(path) if path.is_dir() else cached_checkpoint(name)
    except DFlashError:
        return {}
    return {} if checkpoint is None else checkpoint.config
