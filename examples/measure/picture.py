"""Draw `examples/chat.svg`: a real chat with the bundled pair in its terminal.

    .venv/bin/python examples/measure/picture.py

The chat runs in a pseudo-terminal. The picture is taken while the last answer streams, so it shows
the colours of passes, the status line and a queued message. The rates are those of the machine that
draws it.
"""

import sys
import tempfile
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from screen import Memory  # noqa: E402  # pyright: ignore[reportMissingImports]
from terminal import Terminal, environment  # noqa: E402  # pyright: ignore[reportMissingImports]

COLUMNS, ROWS = 98, 44
TRIES = 6  # frames come ten times a second, and the answer takes little longer
GREY = "9a9686"
ASKED = (
    "/think on",
    "Anna has 5 apples and buys 7 more. How many does she have?",
    "/compare",
    "/clear",
    "/think off",
    "/watch on",
)
LAST = "Write a Python function that counts the vowels in a word."
NEXT = "Which day comes after Wednesday?"  # typed during the last answer


class Shaded(Memory):
    """A pyte screen that shows dim text in grey, because pyte does not know dim."""

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        super().select_graphic_rendition(*attributes, **options)
        if 2 in attributes:
            self.cursor.attrs = self.cursor.attrs._replace(fg=GREY)


def as_text(screen: Any) -> Text:
    lines = []
    for row in range(screen.lines):
        line = Text()
        cells = (screen.buffer[row][column] for column in range(screen.columns))
        for look, run in groupby(cells, lambda cell: (cell.fg, cell.bold, cell.italics)):
            colour = {"brown": "yellow", "default": None, GREY: f"#{GREY}"}.get(look[0], look[0])
            style = Style(color=colour, bold=look[1], italic=look[2])
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def chat() -> Text:
    """Run one chat; returns the fullest screen during the last answer."""
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(Path(folder))
        del variables["OPENBLAS_NUM_THREADS"], variables["SLOWED"]
        command = [sys.executable, "-m", "dflash_mlx.cli", "chat", "--demo"]
        terminal = Terminal(command, variables, COLUMNS, ROWS)
        screen = Shaded(COLUMNS, ROWS, history=1000)
        screen.write_process_input = lambda data: terminal._replies.append(data)
        terminal.screen._screen, terminal.screen._stream = screen, pyte.Stream(screen)
        terminal.prompted()
        for line in ASKED:
            terminal.send(line + "\r")
            terminal.settle(1.0)
            terminal.prompted()
        terminal.send(f"{LAST}\r{NEXT}\r")
        best = Text()
        while terminal.pump(1.0):
            shown = as_text(screen)
            lines = shown.plain.splitlines()
            waits = len(lines) > 1 and "tok/s" in lines[-2] and NEXT in lines[-1]
            if waits and len(lines) >= len(best.plain.splitlines()):
                best = shown
        terminal.close()
    return best


def main() -> None:
    """Chat until a picture shows enough of an answer, and draw it."""
    pictures = [chat() for _ in range(TRIES)]
    picture = max(pictures, key=lambda text: len(text.plain.splitlines()))
    console = Console(width=COLUMNS, record=True, file=StringIO())
    console.print(picture)
    target = ROOT / "examples" / "chat.svg"
    svg = console.export_svg(title="dflash chat", theme=MONOKAI, unique_id="chat")
    target.write_text(svg, encoding="utf-8")
    print(f"{target}: {len(picture.plain.splitlines())} lines")


if __name__ == "__main__":
    main()
