"""Chooses the pair of `dflash chat` when none is named: one for this Mac, or the bundled one."""

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dflash_mlx.errors import DFlashError

from .options import ModelOptions
from .terminal.output import Output, format_bytes
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx.hub.registry import Entry


def choose_pair(model_options: ModelOptions, out: Output, *, interactive: bool) -> ModelOptions:
    """The options with a pair filled in; unchanged options mean the bundled pair.

    Takes a downloaded pair without a question. Otherwise offers the best pair that fits memory and
    disk, if the user can be asked.
    """
    if not has_metal():
        return model_options
    from dflash_mlx.hub.registry import best_pair, entries
    from dflash_mlx.models.memory import working_set

    limit = working_set()
    downloaded = best_pair(
        limit, 1 << 62, (entry for entry in entries() if is_downloaded(entry, model_options))
    )
    if downloaded is not None:
        return with_target(model_options, downloaded)
    if not interactive or model_options.offline:
        out.note("no model is downloaded yet: `dflash models list` shows what fits this Mac")
        return model_options
    entry = best_pair(limit, free_disk())
    if entry is None:
        out.note("no published pair fits the memory and the free disk of this Mac")
        return model_options
    return offer_download(model_options, entry, out)


def is_downloaded(entry: "Entry", model_options: ModelOptions) -> bool:
    """Whether all files of a pair are downloaded."""
    from dflash_mlx.hub.cache import cached_state

    needed = [entry.target] if model_options.no_draft else [entry.target, entry.draft]
    return all(cached_state(repo) == "yes" for repo in needed)


def offer_download(model_options: ModelOptions, entry: "Entry", out: Output) -> ModelOptions:
    """Show the pair and its size, and ask."""
    from dflash_mlx.hub.download import plan

    try:
        with Spinner(out, "asking the Hub"):
            repos = [entry.target] if model_options.no_draft else [entry.target, entry.draft]
            missing = sum(plan(repo).missing_bytes for repo in repos)
    except DFlashError as error:
        out.note(f"{error.message} The bundled pair answers.", "warning")
        return model_options
    memory = (
        f" They need {format_bytes(entry.memory_bytes)} of memory." if entry.memory_bytes else ""
    )
    out.info(f"{entry.target} with the drafter {entry.draft} suits this Mac.{memory}")
    out.info("`dflash models list` shows the others; -m names one.", "dim")
    confirmation = f"Download {format_bytes(missing)}? (no: chat with the tiny bundled pair)"
    return (
        with_target(model_options, entry)
        if typer.confirm(confirmation, default=True, err=True)
        else model_options
    )


def with_target(model_options: ModelOptions, entry: "Entry") -> ModelOptions:
    """The options with a pair's target; its drafter is looked up later."""
    return replace(model_options, model=entry.target)


def has_metal() -> bool:
    """Whether MLX uses an Apple GPU here."""
    if sys.platform != "darwin":
        return False
    import mlx.core as mx

    return mx.metal.is_available()


def free_disk() -> int:
    """Free bytes on the disk of the download folder."""
    from dflash_mlx.hub.cache import cache_folder

    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
