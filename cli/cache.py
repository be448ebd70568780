"""`dflash cache`: lists and removes the prefix cache on disk."""

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import DFlashError, UsageError

from .confirm import check_can_ask, confirm
from .options import DisplayOptions, command_group, option_groups
from .terminal.output import Output, format_age, format_bytes, format_count

if TYPE_CHECKING:
    from dflash_mlx.engine.prefix_cache.disk import CachedText

cache = command_group("List and remove prompts that --cache-disk keeps.")


@cache.command("list")
@option_groups
def show(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    display: DisplayOptions,
) -> None:
    """List the prompts on disk, the latest first.

    The size is what would be freed: what other texts begin with too stays.
    """
    from dflash_mlx.engine.prefix_cache.disk import cache_files, cache_root, cached_texts

    out = Output(quiet=display.quiet, plain=display.plain)
    texts, unread = cached_texts(cache_root())
    for folder, count in Counter(file.parent for file in unread).items():
        out.warn(
            f"{format_count(count, 'file', 'files')} in '{folder}' cannot be read: damaged, or of "
            "another version of dflash; `dflash cache rm --all` empties the cache"
        )
    if json:
        out.write_json(
            [
                {
                    "id": text.name,
                    "tokens": text.tokens,
                    "bytes": text.nbytes,
                    "used": round(text.used),  # in seconds since 1970
                    "target": text.target,
                    "draft": text.draft,
                }
                for text in texts
            ]
        )
        return
    rows = [("ID", "tokens", "size", "used", "target", "drafter")]
    for text in texts:
        numbers = text.name[:8], f"{text.tokens:,}", format_bytes(text.nbytes)
        age = format_age(time.time() - text.used)
        rows.append((*numbers, age, text.target, text.draft or "–"))
    out.write_table(rows)
    if out.stdout_is_tty:
        total = sum(file.nbytes for file in cache_files(cache_root()))
        out.note(f"{format_bytes(total)} in {cache_root()}")


@cache.command("rm")
@option_groups
def rm(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="The beginning of a text's ID.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    display: DisplayOptions,
) -> None:
    """Remove prompts from disk; a beginning that others share stays."""
    from dflash_mlx.engine.prefix_cache.disk import cache_files, cache_root, cached_texts, clear

    out = Output(quiet=display.quiet, plain=display.plain)
    if bool(names) == everything:
        raise UsageError(
            "name the prompts to remove, or give --all.", hint="`dflash cache list` shows their IDs"
        )
    texts, _ = cached_texts(cache_root())
    chosen = texts if everything else [find_text(name, texts) for name in names or ()]
    size = sum(text.nbytes for text in chosen)
    if everything:
        size = sum(file.nbytes for file in cache_files(cache_root()))
    check_can_ask(yes)
    label = f"{format_count(len(chosen), 'text', 'texts')}, {format_bytes(size)}"
    confirm(f"Remove {label}?", "nothing was removed", out, yes=yes)
    if everything:
        clear(cache_root())
    for file in (file for text in chosen for file in text.files):
        file.unlink(missing_ok=True)
    out.note(f"{format_bytes(size)} freed")


def find_text(name: str, texts: "list[CachedText]") -> "CachedText":
    """The text whose ID begins with `name`; DFlashError for none, UsageError for several."""
    matches = [text for text in texts if text.name.startswith(name.lower())]
    if not matches:
        raise DFlashError(f"no text has the ID '{name}'.", hint="`dflash cache list` shows them")
    if len(matches) > 1:
        raise UsageError(
            f"{len(matches)} texts have an ID that begins with '{name}'.",
            hint="give more of it; `dflash cache list --json` has the whole",
        )
    return matches[0]
