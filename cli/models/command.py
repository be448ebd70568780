"""`dflash models`: the known pairs, and the models in the Hub's cache.

Knows the registry and the cache through the engine, not how bytes come.
"""

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import DFlashError, UsageError

from ..options import ScreenOptions, grouped
from ..output import Output, size
from .shelf import cached_rows, known_rows, show_rows

if TYPE_CHECKING:
    from dflash_mlx.hub.download import Plan

models = typer.Typer(
    help="List, download and delete models.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@models.command("list")
@grouped
def show(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    screen: ScreenOptions,
) -> None:
    """List the known pairs: size, what is downloaded, what fits this machine.

    Nothing is asked of the Hub. Sizes with ~ are estimates; the memory is that of both models with
    4,096 tokens of context.
    """
    out = Output(quiet=screen.quiet, plain=screen.plain)
    rows = [*known_rows(), *cached_rows()]
    if json:
        found = [row.data() for row in rows]
        out.write(jsonlib.dumps(found, ensure_ascii=out.answers) + "\n")
        return
    show_rows(rows, out)


@models.command("pull")
@grouped
def pull(
    model: Annotated[str, typer.Argument(metavar="ID", help="Target: a Hub id.")],
    *,
    draft: Annotated[
        str | None,
        typer.Option("--draft", "-d", metavar="ID", help="Drafter; else the target's known one."),
    ] = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Only the target.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    screen: ScreenOptions,
) -> None:
    """Download a model and its drafter, or their newest versions.

    Stopped or cut off, the same command goes on from there.
    """
    out = Output(quiet=screen.quiet, plain=screen.plain)
    check_id(model)
    if draft is not None:
        check_id(draft)
        if no_draft:
            raise UsageError(
                "a drafter and no drafter were asked for.", hint="leave one of them out"
            )
    check_asking(yes)
    try:
        download(model, draft, no_draft, yes, out)
    except KeyboardInterrupt:
        out.tell(f"stopped; a second `dflash models pull {model}` goes on from here")
        raise typer.Exit(130) from None


def download(target: str, draft: str | None, no_draft: bool, yes: bool, out: Output) -> None:
    """Say what will be fetched, ask, and fetch it."""
    from dflash_mlx.hub import registry
    from dflash_mlx.hub.download import check_room, plan
    from dflash_mlx.hub.download import download as fetch

    from ..terminal.wait import Wait

    entry = registry.find(target)
    if draft is None and not no_draft:
        draft = entry.draft if entry else None
        if entry is None:
            out.tell(f"no drafter is known for '{target}': give one with --draft", "warning")
        elif entry.lacks:
            out.tell(f"this pair cannot run yet: {entry.lacks}", "warning")
    with Wait(out, "asking the Hub"):
        plans = [plan(repo) for repo in (target, draft) if repo is not None]
    for found in plans:
        out.tell(f"{found.repo} · {state(found)}")
    check_room(*plans)
    total = sum(found.missing_bytes for found in plans)
    if total and not yes and not typer.confirm(f"Download {size(total)}?", default=True, err=True):
        out.tell("nothing was downloaded")
        raise typer.Exit(1)
    for found in plans:
        with Wait(out, found.repo, unit="bytes") as wait:
            folder = fetch(found.repo, wait.update)
        out.note(f"{found.repo} is in {folder}")


def state(found: "Plan") -> str:
    """What is left to fetch, in words."""
    if found.cached:
        return "nothing to download"
    part = found.missing_bytes < found.total_bytes
    of = f" of {size(found.total_bytes)}" if part else ""
    return f"{size(found.missing_bytes)}{of} to download"


@models.command("rm")
@grouped
def rm(
    model: Annotated[str, typer.Argument(metavar="ID", help="A Hub id.")],
    *,
    draft: Annotated[
        bool, typer.Option("--draft", help="Delete the target's known drafter as well.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    screen: ScreenOptions,
) -> None:
    """Delete a model from the Hub's cache."""
    from dflash_mlx.hub import registry
    from dflash_mlx.hub.cache import cached_bytes, remove, repo_folder

    out = Output(quiet=screen.quiet, plain=screen.plain)
    check_id(model)
    if not repo_folder(model).is_dir():
        raise DFlashError(
            f"'{model}' is not in the cache.", hint="`dflash models list` shows what is"
        )
    repos = [model]
    if draft:
        known = registry.drafter_of(model)
        if known is None:
            raise DFlashError(f"no drafter is known for '{model}'.", hint="delete it by its own id")
        repos += [known] if repo_folder(known).is_dir() else []
    check_asking(yes)
    sizes = {repo: cached_bytes(repo) for repo in repos}
    for repo, count in sizes.items():
        out.tell(f"{repo} · {size(count)}")
    if not yes and not typer.confirm(f"Delete {size(sum(sizes.values()))}?", err=True):
        out.tell("nothing was deleted")
        raise typer.Exit(1)
    freed = sum(remove(repo) for repo in repos)
    out.note(f"{size(freed)} freed")


def check_id(name: str) -> None:
    """UsageError for what cannot be a Hub id."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise UsageError(f"'{name}' is not a Hub id.", hint="give owner/model, as on the Hub")


def check_asking(yes: bool) -> None:
    """UsageError where nobody can be asked."""
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("there is no terminal to ask at.", hint="give --yes to go on without")
