"""Where models are: names to folders, and which drafter belongs to which target.

Knows the registry, and asks `snapshots` and `download` for what has a Hub id.
"""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from dflash_mlx.errors import DFlashError, UsageError

from . import registry
from .cache import local
from .download import Progress, download

BUNDLED = "bundled"


@dataclass(frozen=True, slots=True)
class Names:
    """Where a pair is, a folder or a Hub id each, and what to call it."""

    target: str | Path
    target_label: str
    draft: str | Path | None
    draft_label: str | None


def bundled(part: str) -> Path:
    """The folder of the bundled target or drafter ("target", "draft")."""
    with as_file(files("dflash_mlx.bundled")) as folder:
        if not (folder / part).is_dir():
            raise DFlashError(
                "the bundled pair is missing from this installation.",
                hint="install dflash-chat again, or name a model with --model",
            )
        return folder / part


def pair_names(
    target: str | Path | None, draft: str | Path | None, *, no_draft: bool = False
) -> Names:
    """Decide what to load; DFlashError when no drafter is known for the target, or none that runs.

    UsageError when a drafter is named and forbidden.
    """
    if no_draft and draft is not None:
        raise UsageError("a drafter and no drafter were asked for.", hint="leave one of them out")
    if target is None:
        where: str | Path = bundled("target")
        label = BUNDLED
    else:
        where, label = target, str(target)
    if no_draft:
        return Names(where, label, None, None)
    if draft is not None:
        return Names(where, label, draft, str(draft))
    if target is None:
        return Names(where, label, bundled("draft"), BUNDLED)
    found = known_drafter(target)
    return Names(where, label, found, found)


def known_drafter(target: str | Path) -> str:
    """The Hub id of a target's drafter; DFlashError when there is none that this engine runs."""
    entry = registry.find(str(target))
    if entry is None:
        hint = "give one with --draft, or run without with --no-draft"
        if is_hub_id(target):
            hint += "; `dflash models list` shows the known pairs"
        raise DFlashError(f"no DFlash drafter is known for '{target}'.", hint=hint)
    if entry.lacks:
        raise DFlashError(
            f"the pair of '{target}' and '{entry.draft}' cannot run: {entry.lacks}.",
            hint="`dflash models list` shows the pairs that run",
        )
    return entry.draft


def fetch(name: str | Path, on_download: Progress | None = None) -> Path:
    """The local folder of a model; Hub ids are downloaded unless the Hub's cache has them whole.

    What is cached is taken as it is: only `dflash models pull` looks for a newer version.
    `on_download(done, total)` counts bytes. DFlashError says what is missing.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if not is_hub_id(name):
        raise DFlashError(
            f"there is no folder '{name}'.", hint="give a folder, or a Hub id such as Qwen/Qwen3-4B"
        )
    return local(str(name)) or download(str(name), on_download)


def is_hub_id(name: str | Path) -> bool:
    """Whether a name that is no folder reads owner/model."""
    text = str(name)
    looks_so = not text.startswith((".", "/", "~")) and text.count("/") == 1
    return isinstance(name, str) and looks_so and not Path(name).is_dir()
