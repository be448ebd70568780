"""The live region of the screen: lines below the printed text that are redrawn in place.

The cursor rests at the start of the region's first line. A terminal keeps the cursor at that text
when the window is resized, whether it reflows lines or cuts them, so erasing needs no row count:
the whole region lies at or after the cursor. Only rows that scroll off the top remain, so a region
should take less than half the screen.
"""

import re
from collections.abc import Callable, Sequence

HIDE_CURSOR = "\x1b[?25l"
SHOW_CURSOR = "\x1b[?25h"
# Erases from the start of this line to the end of the screen, in two steps: tmux treats one step
# from the upper left corner as clearing the screen, and saves the screen in its history.
ERASE_BELOW = "\r\x1b[K\x1b[C\x1b[J\r"
STYLE_SEQUENCE = re.compile(r"(\x1b\[[0-9;]*m)")


class LiveRegion:
    """Redraws lines in place. `write` takes each frame whole; `size` returns columns and rows.

    Both are 0 if the terminal does not tell its size.
    """

    def __init__(self, write: Callable[[str], None], size: Callable[[], tuple[int, int]]):
        self._write = write
        self._read_size = size
        self._lines: list[str] = []
        self._drawn_size = (0, 0)
        self._last_size = (80, 24)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows; the last known ones when the terminal reports none."""
        if (size := self._read_size()) > (0, 0):
            self._last_size = size
        return self._last_size

    def draw(self, finished: Sequence[str], live: Sequence[str]) -> None:
        """Print `finished` permanently above the region, then show `live` in the region.

        Live lines are cut to the screen's width, and to its rows less one from the top: a row that
        has scrolled off cannot be erased.
        """
        size = self.size
        columns, rows = size
        lines = [truncate(line, columns - 1) for line in live[-max(1, rows - 1) :]]
        if not finished and lines == self._lines and size == self._drawn_size:
            return
        frame = "" if self._lines else HIDE_CURSOR
        if finished or not self._lines or size != self._drawn_size:
            frame += ERASE_BELOW
        frame += "".join(f"{line}\n" for line in finished)
        # Clear each row from its start; otherwise tmux joins its old text to the new line.
        frame += "\n".join(f"\r\x1b[K{line}" for line in lines)
        frame += "\x1b[J\r" if lines else ERASE_BELOW
        frame += f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        if not lines:
            frame += SHOW_CURSOR
        self._lines = lines
        self._drawn_size = size
        self._write(frame)

    def erase(self) -> None:
        if erasing := self.hide():
            self._write(erasing)

    def hide(self) -> str:
        """The escape codes that erase the region; the next frame draws all lines again."""
        was_drawn = bool(self._lines)
        self._lines = []
        return ERASE_BELOW + SHOW_CURSOR if was_drawn else ""


def truncate(line: str, columns: int) -> str:
    """Cut a styled line to a number of columns; counts joined characters as separate ones."""
    if line.isascii() and len(line) <= columns:
        return line
    from rich.cells import get_character_cell_size

    columns_left = columns
    visible = ""
    for part in STYLE_SEQUENCE.split(line):
        if part.startswith("\x1b"):
            visible += part  # also after the cut, so that open styles end
            continue
        for character in part:
            columns_left -= 1 if character == "\ufe0f" else get_character_cell_size(character)
            if columns_left < 0:
                break
            visible += character
    return visible
