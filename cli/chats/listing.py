"""The saved chats as rows, and what a search finds in them. Knows saved chats, prints nothing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import DFlashError

from ..attachments import split_attached
from ..cache.command import age
from ..chat import transcript
from ..chat.turn import Chat
from ..terminal.live_region import truncate
from ..terminal.output import format_count, strip_control

MIN_PROMPT_COLUMNS = 16  # of a table; a narrower terminal gets no first prompt


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A chat's file; `chat` is None when it is damaged. `saved` in seconds since 1970."""

    name: str
    saved: float
    chat: Chat | None

    @property
    def first_prompt(self) -> str:
        """The first prompt on one line, without its files."""
        if self.chat is None:
            return "(damaged)"
        return on_one_line(split_attached(self.chat.turns[0].prompt)[0]) if self.chat.turns else ""

    def cells(self) -> tuple[str, str, str, str]:
        """Name, turns, age and first prompt."""
        turns = "–" if self.chat is None else format_count(len(self.chat.turns), "turn", "turns")
        return self.name, turns, age(time.time() - self.saved), self.first_prompt

    def data(self) -> dict[str, Any]:
        """The chat for --json, without what was said after the first prompt."""
        chat = self.chat
        return {
            "name": self.name,
            "saved": round(self.saved),
            "turns": None if chat is None else len(chat.turns),
            "model": None if chat is None else chat.model,
            "draft": None if chat is None else chat.draft,
            "first_prompt": None if chat is None else self.first_prompt,
        }


def saved_chats() -> list[SavedChat]:
    """All saved chats, the latest first."""
    found = []
    for name in transcript.chat_names():
        with suppress(FileNotFoundError):  # it has just been removed
            saved = transcript.chat_path(name).stat().st_mtime
            try:
                chat = transcript.load(name)
            except DFlashError:
                chat = None
            found.append(SavedChat(name, saved, chat))
    return found


def table(found: Sequence[SavedChat], columns: int) -> list[str]:
    """The chats as lines of a table, the first prompt as long as the screen is wide."""
    rows = [chat.cells()[:3] for chat in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for chat, row in zip(found, rows, strict=True):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        room = columns - len(line) - 3
        line += f"  {truncate(chat.first_prompt, room)}" if room >= MIN_PROMPT_COLUMNS else ""
        lines.append(line.rstrip())
    return lines


def excerpts(saved: SavedChat, words: Sequence[str], columns: int) -> Iterator[tuple[int, str]]:
    """The turns that have all words, numbered from 1, each with the place of the first one."""
    for number, turn in enumerate(saved.chat.turns if saved.chat else (), 1):
        text = on_one_line(f"{turn.prompt} {turn.answer}")
        places = [text.lower().find(on_one_line(word).lower()) for word in words]
        if min(places) >= 0:
            fits = truncate(text, columns) == text
            begin = 0 if fits else max(0, places[0] - columns // 3)
            cut = ("…" if begin else "") + text[begin:]
            yield number, truncate(cut, columns)


def on_one_line(text: str) -> str:
    """A text without line breaks, and without what a terminal would obey."""
    return " ".join(strip_control(text).split())
