"""Downloads models after a question, with progress."""

from collections.abc import Callable, Sequence
from functools import partial

from .awake import awake
from .confirm import confirm
from .terminal.output import Output, format_bytes
from .terminal.spinner import Spinner

WAIT_NOTE = "another program downloads this model: this one waits for it"


def download_models(repos: Sequence[str], out: Output, *, yes: bool) -> None:
    """Show how much of each model is missing, ask, and download it.

    Files that the cache holds are read, and damaged ones are downloaded again. After a no
    typer.Exit(1); DFlashError if a download fails.
    """
    from dflash_mlx.hub.download import check_room, checked, download, plan

    plans = []
    for repo in repos:
        with Spinner(out, "asking the Hub"):
            pending = plan(repo)
        with Spinner(out, f"reading {repo}", unit="bytes") as spinner:
            plans.append(checked(pending, spinner.update))
    for pending in plans:
        of_total = ""
        if pending.missing_bytes < pending.total_bytes:
            of_total = f" of {format_bytes(pending.total_bytes)}"
        missing = f"{format_bytes(pending.missing_bytes)}{of_total} to download"
        out.info(f"{pending.repo} · {'nothing to download' if pending.cached else missing}")
        for file in pending.damaged:
            out.info(f"'{file.name}' is damaged: its content is not what its name promises")
    check_room(*plans)
    total = sum(pending.missing_bytes for pending in plans)
    if total:
        question = f"Download {format_bytes(total)}?"
        confirm(question, "nothing was downloaded", out, yes=yes, default=True)
    for pending in plans:
        with awake(), Spinner(out, pending.repo, unit="bytes") as spinner:
            folder = download(
                pending, with_stalls(spinner.update, out), partial(out.info, WAIT_NOTE)
            )
        out.note(f"{pending.repo} is in {folder}")


def download_progress(spinner: Spinner, label: str, out: Output) -> Callable[[int, int], None]:
    """A callback that shows a download's progress in place of `label`, and warns of a stall."""

    def update(done: int, total: int) -> None:
        spinner.relabel("download" if done < total else label, "bytes" if done < total else "")
        spinner.update(done, total)

    return with_stalls(update, out)


def with_stalls(update: Callable[[int, int], None], out: Output) -> Callable[[int, int], None]:
    """A callback for downloads that calls `update`, and warns once of a stall.

    `download` calls it with the same counts again when no byte has come for a minute.
    """
    last = -1
    warned = False

    def update_or_warn(done: int, total: int) -> None:
        nonlocal last, warned
        if done == last < total and not warned:
            warned = True
            out.warn("no data for a minute: trying again in small pieces")
        last = done
        update(done, total)

    return update_or_warn
