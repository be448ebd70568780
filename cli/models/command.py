"""`dflash models`: lists, downloads and deletes models in the Hub's cache.

Uses the engine's registry and cache; does not know how files are transferred.
"""

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import DFlashError, UsageError

from ..model_names import known_target
from ..options import DisplayOptions, option_groups
from ..terminal.output import Output, format_bytes
from .table import cached_rows, known_rows, short_rows, show_rows

if TYPE_CHECKING:
    from dflash_mlx.hub.download import Plan

models = typer.Typer(
    help="List, download and delete models.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@models.command("list")
@option_groups
def show(
    *,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="All known pairs, in all forms.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all as one JSON array.")] = False,
    display: DisplayOptions,
) -> None:
    """List what is downloaded, and of other known models what fits this machine, with sizes.

    Nothing is asked of the Hub. Sizes with ~ are estimates; the memory is that of both models with
    4,096 tokens of context, where a quantised target's drafter is held in 8 bits (--draft-bits).
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    rows = [*known_rows(), *cached_rows()]
    if json:
        document = [row.data() for row in rows]
        out.write(jsonlib.dumps(document, ensure_ascii=out.stdout_is_tty) + "\n")
        return
    shown = rows if every else short_rows(rows)
    show_rows(shown, out)
    if left := len(rows) - len(shown):
        out.note(f"{left} more, and other forms of these: dflash models list --all")


@models.command("pull")
@option_groups
def pull(
    model: Annotated[str, typer.Argument(metavar="ID", help="Target: a Hub id, or qwen3:4b.")],
    *,
    draft: Annotated[
        str | None,
        typer.Option("--draft", "-d", metavar="ID", help="Drafter; else the target's known one."),
    ] = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Only the target.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    display: DisplayOptions,
) -> None:
    """Download a model and its drafter, or their newest versions.

    Stopped or cut off, the same command goes on from there.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    model = known_target(model, out)
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
        out.info(f"stopped; a second `dflash models pull {model}` goes on from here")
        raise typer.Exit(130) from None


def download(target: str, draft: str | None, no_draft: bool, yes: bool, out: Output) -> None:
    """Show what will be downloaded, ask, and download it."""
    from dflash_mlx.hub import registry
    from dflash_mlx.hub.download import check_room, plan
    from dflash_mlx.hub.download import download as fetch

    from ..terminal.spinner import Spinner

    entry = registry.find(target)
    if draft is None and not no_draft:
        draft = entry.draft if entry else None
        if entry is None:
            out.info(
                f"no drafter is known for '{target}': give one with --draft, make one with"
                " `dflash train`, or go on with lookup, which copies from earlier text",
                "warning",
            )
        elif entry.lacks:
            out.info(f"this pair cannot run yet: {entry.lacks}", "warning")
    with Spinner(out, "asking the Hub"):
        plans = [plan(repo) for repo in (target, draft) if repo is not None]
    for pending in plans:
        out.info(f"{pending.repo} · {missing_summary(pending)}")
    check_room(*plans)
    total = sum(pending.missing_bytes for pending in plans)
    if (
        total
        and not yes
        and not typer.confirm(f"Download {format_bytes(total)}?", default=True, err=True)
    ):
        out.info("nothing was downloaded")
        raise typer.Exit(1)
    for pending in plans:
        with Spinner(out, pending.repo, unit="bytes") as spinner:
            folder = fetch(pending.repo, spinner.update)
        out.note(f"{pending.repo} is in {folder}")


def missing_summary(plan: "Plan") -> str:
    """How much is left to download, in words."""
    if plan.cached:
        return "nothing to download"
    partial = plan.missing_bytes < plan.total_bytes
    of_total = f" of {format_bytes(plan.total_bytes)}" if partial else ""
    return f"{format_bytes(plan.missing_bytes)}{of_total} to download"


@models.command("rm")
@option_groups
def rm(
    model: Annotated[str, typer.Argument(metavar="ID", help="A Hub id.")],
    *,
    draft: Annotated[
        bool, typer.Option("--draft", help="Delete the target's known drafter as well.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    display: DisplayOptions,
) -> None:
    """Delete a model from the Hub's cache."""
    from dflash_mlx.hub import registry
    from dflash_mlx.hub.cache import cached_bytes, remove, repo_folder

    out = Output(quiet=display.quiet, plain=display.plain)
    model = known_target(model, out)
    check_id(model)
    if not repo_folder(model).is_dir():
        raise DFlashError(
            f"'{model}' is not in the cache.", hint="`dflash models list` shows what is"
        )
    repos = [model]
    if draft:
        drafter = registry.drafter_of(model)
        if drafter is None:
            raise DFlashError(f"no drafter is known for '{model}'.", hint="delete it by its own id")
        repos += [drafter] if repo_folder(drafter).is_dir() else []
    check_asking(yes)
    sizes = {repo: cached_bytes(repo) for repo in repos}
    for repo, count in sizes.items():
        out.info(f"{repo} · {format_bytes(count)}")
    if not yes and not typer.confirm(f"Delete {format_bytes(sum(sizes.values()))}?", err=True):
        out.info("nothing was deleted")
        raise typer.Exit(1)
    freed = sum(remove(repo) for repo in repos)
    out.note(f"{format_bytes(freed)} freed")


def check_id(name: str) -> None:
    """UsageError when a name cannot be a Hub id."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        from dflash_mlx.hub.short_names import did_you_mean

        raise UsageError(
            f"'{name}' is not a Hub id.",
            hint=did_you_mean(name) or "give owner/model, as on the Hub",
        )


def check_asking(yes: bool) -> None:
    """UsageError when there is no terminal for a question."""
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("there is no terminal to ask at.", hint="give --yes to go on without")
