"""`dflash chats`: lists, shows, searches, removes and exports saved chats."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_mlx.errors import DFlashError, UsageError

from .chat import transcript
from .chat.transcript import Chat
from .confirm import check_can_ask, confirm
from .options import DisplayOptions, command_group, option_groups
from .prompt import split_attached
from .terminal.live_region import truncate
from .terminal.output import (
    Output,
    align_columns,
    format_age,
    format_count,
    screen_width,
    stdout_size,
    strip_control,
)

# The saved chats as rows, and the matches of a search

MIN_PROMPT_COLUMNS = 16  # with less room, the table has no first prompts


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A chat's file. chat: None if the file is damaged. saved_at: in seconds since 1970."""

    name: str
    saved_at: float
    chat: Chat | None

    @property
    def first_prompt(self) -> str:
        if self.chat is None:
            return "(damaged)"
        return on_one_line(split_attached(self.chat.turns[0].prompt)[0]) if self.chat.turns else ""

    def cells(self) -> tuple[str, str, str, str]:
        turns = "–" if self.chat is None else format_count(len(self.chat.turns), "turn", "turns")
        return self.name, turns, format_age(time.time() - self.saved_at), self.first_prompt

    def data(self) -> dict[str, Any]:
        """The chat for --json, without the text after the first prompt."""
        chat = self.chat
        return {
            "name": self.name,
            "saved": round(self.saved_at),
            "turns": None if chat is None else len(chat.turns),
            "model": None if chat is None else chat.model,
            "draft": None if chat is None else chat.draft,
            "first_prompt": None if chat is None else self.first_prompt,
        }


def saved_chats() -> list[SavedChat]:
    """All saved chats, the latest first."""
    saved = []
    for name in transcript.chat_names():
        with suppress(FileNotFoundError):  # it has just been removed
            saved_at = transcript.chat_path(name).stat().st_mtime
            try:
                chat = transcript.load(name)
            except DFlashError:
                chat = None
            saved.append(SavedChat(name, saved_at, chat))
    return saved


def table(saved: Sequence[SavedChat], columns: int) -> list[str]:
    """The chats as lines of a table; the first prompt takes the rest of the screen."""
    lines = []
    labels = align_columns([chat.cells()[:3] for chat in saved])
    for chat, label in zip(saved, labels, strict=True):
        width = columns - screen_width(label) - 3
        prompt = f"  {truncate(chat.first_prompt, width)}" if width >= MIN_PROMPT_COLUMNS else ""
        lines.append(f"{label}{prompt}".rstrip())
    return lines


def search_turns(saved: SavedChat, words: Sequence[str], columns: int) -> Iterator[tuple[int, str]]:
    """The turns that have all words: their numbers from 1, and the text around the first word."""
    for number, turn in enumerate(saved.chat.turns if saved.chat else (), 1):
        text = on_one_line(f"{turn.prompt} {turn.answer}")
        positions = [text.lower().find(on_one_line(word).lower()) for word in words]
        if min(positions) >= 0:
            fits_line = truncate(text, columns) == text
            start = 0 if fits_line else max(0, positions[0] - columns // 3)
            excerpt = ("…" if start else "") + text[start:]
            yield number, truncate(excerpt, columns)


def on_one_line(text: str) -> str:
    return " ".join(strip_control(text).split())


MISSING_NAME = "`dflash chats list` shows the names"

chats = command_group("List, show, search, remove and export saved chats.")

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
    """List the saved chats, the latest first."""
    out = Output(quiet=display.quiet, plain=display.plain)
    saved = saved_chats()
    if json:
        out.write_json([chat.data() for chat in saved])
    elif not saved:
        out.note("no chat is saved yet")
    else:
        lines = table(saved, stdout_size()[0] or 80)
        out.write_table([chat.cells() for chat in saved], lines)


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
        out.write_json({"name": name, **asdict(chat)})
    else:
        out.write(transcript.to_markdown(chat))


@chats.command()
@option_groups
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="All must be in a turn.")],
    *,
    display: DisplayOptions,
) -> None:
    """Find turns with these words; exit code 1 if there are none."""
    out = Output(quiet=display.quiet, plain=display.plain)
    turns = 0
    for chat in saved_chats():
        for number, line in search_turns(chat, words, (stdout_size()[0] or 100) - 8):
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
        raise UsageError("name the chats to remove, or give --all.", hint=MISSING_NAME)
    chosen = transcript.chat_names() if everything else list(dict.fromkeys(names or ()))
    for name in chosen:
        if not transcript.chat_path(name).exists():
            raise transcript.missing_error(name)
    check_can_ask(yes)
    label = chosen[0] if len(chosen) == 1 else format_count(len(chosen), "chat", "chats")
    confirm(f"Remove {label}?", "nothing was removed", out, yes=yes)
    for name in chosen:
        transcript.remove(name)
    out.note(f"{label} removed")


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
    """Write a saved chat to a file, as Markdown."""
    out = Output(quiet=display.quiet, plain=display.plain)
    path = file.expanduser()
    transcript.export(path, transcript.load(name))
    out.note(f"written to {path}")


def last_name() -> str:
    """The name of the chat that was saved last; UsageError without any."""
    names = transcript.chat_names()
    if not names:
        raise UsageError("there is no saved chat yet.", hint="`dflash chat` begins one")
    return names[0]
