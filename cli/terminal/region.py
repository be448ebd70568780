"""The part of the screen that moves: lines below what was printed, drawn over until erased.

Knows lines and the screen's size, not what the lines say.

The cursor rests at the start of the region's first line. A terminal keeps it with that place when
the window changes, whether it breaks lines anew or cuts them, so erasing never counts rows: all
that is ours lies from the cursor on, and nothing that is ours lies before it. Only what a terminal
moves out at the top stays: a region should take less than half the screen.
"""

import re
from collections.abc import Callable, Sequence

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
# From the start of this line to the end of the screen, but not in one step: from the upper left
# corner tmux takes that for clearing the screen, and keeps what was there in its history.
ERASE = "\r\x1b[K\x1b[C\x1b[J\r"
STYLE = re.compile(r"(\x1b\[[0-9;]*m)")


class Region:
    """Moving lines. `write` takes each frame whole; `size` gives columns and rows."""

    def __init__(self, write: Callable[[str], None], size: Callable[[], tuple[int, int]]):
        self._write, self._size = write, size
        self._lines: list[str] = []
        self._drawn_at = (0, 0)

    def draw(self, finished: Sequence[str], live: Sequence[str]) -> None:
        """Print lines for good above the region, and have it show `live`.

        Live lines are cut to the columns there are, and from the top to the rows there are less
        one: what has left the screen cannot be erased.
        """
        columns, rows = size = self._size()
        lines = [cut(line, columns - 1) for line in live[-max(1, rows - 1) :]]
        if not finished and lines == self._lines and size == self._drawn_at:
            return
        frame = "" if self._lines else HIDE
        if finished or not self._lines or size != self._drawn_at:
            frame += ERASE
        frame += "".join(f"{line}\n" for line in finished)
        # A row is cleared from its start, or tmux still takes what it held for a part of it.
        frame += "\n".join(f"\r\x1b[K{line}" for line in lines)
        frame += "\x1b[J\r" if lines else ERASE
        frame += f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        if not lines:
            frame += SHOW
        self._lines, self._drawn_at = lines, size
        self._write(frame)

    def erase(self) -> None:
        """Take the lines away; the cursor stands where they began."""
        if self._lines:
            self._lines = []
            self._write(ERASE + SHOW)


def cut(line: str, columns: int) -> str:
    """As much of a line with styles as fits, however a terminal measures joined characters."""
    if line.isascii() and len(line) <= columns:
        return line
    from rich.cells import get_character_cell_size

    left, found = columns, ""
    for part in STYLE.split(line):
        if part.startswith("\x1b"):
            found += part  # also after the cut: a style that began must end
            continue
        for sign in part:
            left -= 1 if sign == "\ufe0f" else get_character_cell_size(sign)
            if left < 0:
                break
            found += sign
    return found
