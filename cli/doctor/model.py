"""`dflash doctor -m ID`: reads the files of a model and compares them with their hashes."""

from contextlib import suppress

from dflash_mlx.address import model_name
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.folder import matching

from ..confirm import can_ask
from ..downloads import download_models
from ..loading import ability_of, known_target, prepare_libraries
from ..options import BUNDLED
from ..terminal.output import Output, format_bytes, format_count
from ..terminal.spinner import Spinner
from .report import CheckReport, CheckResult, fail, ok


def check_files(model: str | None, draft: str | None, out: Output, *, json: bool) -> bool:
    """Check the files of a target and a drafter, and that they fit; False if something is wrong.

    Without `draft` the target's known drafter is checked if a part of it is downloaded. On a
    terminal, asks whether damaged files are downloaded again; typer.Exit(1) after a no.
    """
    prepare_libraries(offline=False)
    from dflash_mlx.hub.cache import cached_state
    from dflash_mlx.hub.registry import find
    from dflash_mlx.hub.resolve import bundled

    names = {}
    draft = given = str(bundled("draft")) if draft == BUNDLED else draft
    if model is not None:
        names["target"] = known_target(model, out)
        entry = find(names["target"])
        known = entry.repos[1:] if entry else ()
        draft = draft or next((repo for repo in known if cached_state(repo) != "no"), None)
    if draft is not None:
        names["drafter"] = model_name(draft)
    report = CheckReport(out, json=json)
    damaged = []
    for role, name in names.items():
        result, repairable = check_model(name, out)
        report.add(role, result)
        if repairable:
            damaged.append(name)
    if len(names) == 2 and all(result.status == "ok" for result in report.results.values()):
        report.add("fit", check_fit(names["target"], given))
    healthy = report.end()
    if damaged and not json and can_ask():
        download_models(damaged, out, yes=False)
        failed = [name for role, name in names.items() if report.results[role].status == "fail"]
        return failed == damaged
    return healthy


def check_fit(target: str, draft: str | None) -> CheckResult:
    """Whether a drafter is for this target, None for its known one; nothing is loaded."""
    from dflash_mlx.resolved_pair import resolve_pair

    try:
        pair = resolve_pair(None if target == BUNDLED else target, draft)
    except DFlashError as error:
        return fail(error.message.rstrip("."), error.hint)
    needed = format_bytes(pair.memory.total)
    return ok(f"the drafter fits the target · about {needed} of memory with a short context")


def check_model(name: str, out: Output) -> tuple[CheckResult, bool]:
    """The check of a model's files, and whether a download would repair damaged ones."""
    from dflash_mlx.files.checkpoint import Checkpoint
    from dflash_mlx.hub.cache import (
        blobs_of,
        damaged_files,
        first_missing_file,
        is_head_only,
        latest_revision,
    )
    from dflash_mlx.hub.openable import why_not
    from dflash_mlx.hub.resolve import bundled, local_folder

    folder = bundled("target") if name == BUNDLED else local_folder(name)
    in_cache = folder is None
    folder = folder or latest_revision(name)
    pull = f"`dflash models pull {name} --no-draft`"
    if folder is None:
        return fail(f"{name} is not downloaded", f"{pull} downloads it"), False
    with suppress(DFlashError):  # of a damaged file, which is named below
        error = None if is_head_only(name) else why_not(Checkpoint.read(folder, name))
        if error is not None:
            return fail(error.message.rstrip("."), error.hint), False
    with Spinner(out, f"reading {name}", unit="bytes") as spinner:
        damaged = damaged_files(blobs_of(folder) if in_cache else {}, spinner.update)
    if damaged:
        listed = ", ".join(f"'{file}'" for file in damaged)
        verb = "is" if len(damaged) == 1 else "are"
        summary = f"{name} · {listed} {verb} damaged: not the content that the Hub has"
        return fail(summary, f"{pull} downloads it again"), True
    if missing := first_missing_file(folder, head_only=is_head_only(name)):
        hint = f"{pull} completes it" if in_cache else "copy the whole folder again"
        return fail(f"{name} · {missing} is missing or cannot be read", hint), False
    files = [path for path in matching(folder) if path.is_file()]
    size = format_bytes(sum(path.stat().st_size for path in files))
    try:
        ability = ability_of(folder, name)
    except DFlashError as error:
        return fail(error.message.rstrip("."), error.hint), False
    read = "complete; only the Hub's cache has hashes to compare"
    if in_cache:
        read = "all have the content that the Hub has"
    parts = (name, f"{format_count(len(files), 'file', 'files')}, {size}", ability, read)
    return ok(" · ".join(filter(None, parts))), False
