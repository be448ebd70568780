"""Which pair `dflash chat` begins with when none is named: one for this Mac, or the bundled one.

Knows the registry and this machine; downloads nothing itself and asks before anything is.
"""

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dflash_mlx.errors import DFlashError

from ..options import ModelOptions
from ..output import Output, size
from ..terminal.wait import Wait

if TYPE_CHECKING:
    from dflash_mlx.hub.registry import Entry


def choose(models: ModelOptions, out: Output, *, asks: bool) -> ModelOptions:
    """The options with a pair in them, or as they are: then the bundled pair answers.

    A pair that was downloaded before is taken without a question. Otherwise, where the user can be
    asked, the best that fits memory and disk is offered with its size.
    """
    if not has_metal():
        return models
    from dflash_mlx.hub.memory import working_set
    from dflash_mlx.hub.registry import entries, suits

    limit = working_set()
    here = suits(limit, 1 << 62, (entry for entry in entries() if is_here(entry, models)))
    if here is not None:
        return named(models, here)
    if not asks or models.offline:
        out.note("no model is downloaded yet: `dflash models list` shows what fits this Mac")
        return models
    entry = suits(limit, free_disk())
    if entry is None:
        out.note("no published pair fits the memory and the free disk of this Mac")
        return models
    return offer(models, entry, out)


def is_here(entry: "Entry", models: ModelOptions) -> bool:
    """Whether all that is needed of a pair is downloaded."""
    from dflash_mlx.hub.cache import cached_state

    needed = [entry.target] if models.no_draft else [entry.target, entry.draft]
    return all(cached_state(repo) == "yes" for repo in needed)


def offer(models: ModelOptions, entry: "Entry", out: Output) -> ModelOptions:
    """Show the pair and its size, and ask."""
    from dflash_mlx.hub.download import plan

    try:
        with Wait(out, "asking the Hub"):
            repos = [entry.target] if models.no_draft else [entry.target, entry.draft]
            missing = sum(plan(repo).missing_bytes for repo in repos)
    except DFlashError as error:
        out.note(f"{error.message} The bundled pair answers.", "warning")
        return models
    memory = f" They need {size(entry.memory_bytes)} of memory." if entry.memory_bytes else ""
    out.tell(f"{entry.target} with the drafter {entry.draft} suits this Mac.{memory}")
    out.tell("`dflash models list` shows the others; -m names one.", "dim")
    question = f"Download {size(missing)}? (no: chat with the tiny bundled pair)"
    return named(models, entry) if typer.confirm(question, default=True, err=True) else models


def named(models: ModelOptions, entry: "Entry") -> ModelOptions:
    """The options with a pair's target; its drafter is looked up as for any target."""
    return replace(models, model=entry.target)


def has_metal() -> bool:
    """Whether MLX computes on an Apple GPU here."""
    if sys.platform != "darwin":
        return False
    import mlx.core as mx

    return mx.metal.is_available()


def free_disk() -> int:
    """Bytes free where downloads go."""
    from dflash_mlx.hub.cache import cache_folder

    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
