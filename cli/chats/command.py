"""`dflash chats`: lists, shows, searches, removes and exports saved chats.

Knows saved chats, no models.
"""

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dflash_mlx.errors import UsageError

from ..chat import transcript
from ..models.command import check_asking
from ..options import DisplayOptions, option_groups
from ..terminal.output import Output, format_count, stdout_size
from .listing import excerpts, saved_chats, table

MISSING_NAME = "`dflash chats list` shows the names"

chats = typer.Typer(
    help="List, show, search, remove and export saved chats.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="A saved chat. [the last one]",
        autocompletion=transcript.complete_name,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON array.")]


@chats.command("list")
@option_groups
def show_list(*, json: Json = False, display: DisplayOptions) -> None:
    """List the saved chats, the last one first: turns, age, first prompt."""
    out = Output(quiet=display.quiet, plain=display.plain)
    found = saved_chats()
    if json:
        print_json([chat.data() for chat in found], out)
    elif not found:
        out.note("no chat is saved yet")
    elif out.stdout_is_tty:
        for line in table(found, stdout_size()[0] or 80):
            out.write(out.ascii_fallback(line) + "\n")
    else:
        out.write("".join("\t".join(chat.cells()) + "\n" for chat in found))


@chats.command()
@option_groups
def show(
    name: Name = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    display: DisplayOptions,
) -> None:
    """Print a saved chat as Markdown."""
    out = Output(quiet=display.quiet, plain=display.plain)
    name = name or last_name()
    chat = transcript.load(name)
    if json:
        print_json({"name": name, **asdict(chat)}, out)
    else:
        out.write(transcript.to_markdown(chat))


@chats.command()
@option_groups
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="All must be in a turn.")],
    *,
    display: DisplayOptions,
) -> None:
    """Find turns with these words, in prompts or answers; exit code 1 when there are none."""
    out = Output(quiet=display.quiet, plain=display.plain)
    turns = 0
    for chat in saved_chats():
        for number, line in excerpts(chat, words, (stdout_size()[0] or 100) - 8):
            turns += 1
            out.write(f"{chat.name}  {number}\n    {line}\n")
    if not turns:
        out.note("nothing was found")
        raise typer.Exit(1)


@chats.command()
@option_groups
def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="Saved chats.", autocompletion=transcript.complete_name
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Remove every saved chat.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    display: DisplayOptions,
) -> None:
    """Remove saved chats."""
    out = Output(quiet=display.quiet, plain=display.plain)
    if bool(names) == everything:
        raise UsageError("say which chats to remove, or --all.", hint=MISSING_NAME)
    chosen = transcript.chat_names() if everything else list(dict.fromkeys(names or ()))
    for name in chosen:
        transcript.check_exists(name)
    check_asking(yes)
    what = chosen[0] if len(chosen) == 1 else format_count(len(chosen), "chat", "chats")
    if not yes and not typer.confirm(f"Remove {what}?", err=True):
        out.info("nothing was removed")
        raise typer.Exit(1)
    for name in chosen:
        transcript.remove(name)
    out.note(f"{what} removed")


@chats.command()
@option_groups
def export(
    name: Annotated[
        str, typer.Argument(help="A saved chat.", autocompletion=transcript.complete_name)
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE.md", help="A new file, or an old export.")],
    *,
    display: DisplayOptions,
) -> None:
    """Write a saved chat as Markdown; `show --json` gives all of it."""
    out = Output(quiet=display.quiet, plain=display.plain)
    path = file.expanduser()
    transcript.export(path, transcript.load(name))
    out.note(f"written to {path}")


def last_name() -> str:
    """The name of the chat that was saved last."""
    found = transcript.chat_names()
    if not found:
        raise UsageError("there is no saved chat yet.", hint="`dflash chat` begins one")
    return found[0]


def print_json(document: object, out: Output) -> None:
    """Print a document on one line."""
    out.write(jsonlib.dumps(document, ensure_ascii=out.stdout_is_tty) + "\n")
