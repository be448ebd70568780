"""Where a slash command is used: a conversation, a screen, and what was loaded."""

from collections.abc import Callable
from dataclasses import dataclass

from ..options import ModelOptions
from ..output import Output, columns
from ..terminal.layout import hanging
from ..terminal.prompt import KEYS, edit
from .dialogue import Dialogue


@dataclass(slots=True)
class Room:
    """Where a command is used: the conversation, the screen, and what was loaded."""

    dialogue: Dialogue
    out: Output
    models: ModelOptions
    edit: Callable[[str], str] = edit

    def line(self, text: str, style: str = "") -> None:
        """One line for the user."""
        self.out.tell(hanging(text, columns()), style)

    def show_keys(self) -> None:
        """The keys and what they do."""
        width = max(len(keys) for keys, _ in KEYS) + 2
        for keys, does in KEYS:
            self.line(f"  {keys:{width}}{does}")


def first_words(text: str, most: int = 50) -> str:
    """The start of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
