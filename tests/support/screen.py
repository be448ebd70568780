"""A terminal to show things on, made of pyte: what is to be seen now, and what scrolled away."""

from collections.abc import Callable
from copy import deepcopy

import pyte


class Memory(pyte.HistoryScreen):
    """Keeps what is erased from the upper left corner on, as tmux does."""

    def erase_in_display(self, how: int = 0, *args, **kwargs) -> None:
        """Erase, and remember."""
        if how == 0 and (self.cursor.x, self.cursor.y) == (0, 0):
            rows = [deepcopy(self.buffer[row]) for row in range(self.lines)]
            while rows and not any(cell.data.strip() for cell in rows[-1].values()):
                rows.pop()
            self.history.top.extend(rows)
        super().erase_in_display(how, *args, **kwargs)


class Screen:
    """A terminal without reflow, as xterm is, with all its history."""

    def __init__(self, columns: int, rows: int):
        self._screen = Memory(columns, rows, history=100_000, ratio=0.5)
        self._stream = pyte.Stream(self._screen)
        self.written = 0  # characters
        self.writes = 0
        self.on_write: Callable[[str], str] | None = None  # a fault to plant

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        return self._screen.columns, self._screen.lines

    def write(self, text: str) -> None:
        """What a program sends; the line discipline makes CR LF of newlines."""
        self.written += len(text)
        self.writes += 1
        if self.on_write:
            text = self.on_write(text)
        self._stream.feed(text.replace("\n", "\r\n"))

    def resize(self, columns: int, rows: int) -> None:
        """Another window size. As terminals do it, and pyte does not: rows below the cursor go
        first, then those at the top go into the history and the cursor moves along."""
        screen = self._screen
        x, y = screen.cursor.x, screen.cursor.y
        lines = [screen.buffer[row] for row in range(screen.lines)]
        gone = max(len(lines) - rows, 0)
        scrolled = max(gone - (len(lines) - 1 - y), 0)
        screen.history.top.extend(lines[:scrolled])
        lines = lines[scrolled : scrolled + rows]
        screen.buffer.clear()
        for row, line in enumerate(lines):
            screen.buffer[row] = line
            for column in [column for column in line if column >= columns]:
                del line[column]
        screen.columns, screen.lines = columns, rows
        screen.set_margins()
        screen.cursor.x, screen.cursor.y = min(x, columns - 1), y - scrolled

    def lines(self) -> list[str]:
        """Every line that can be seen or scrolled to, without those below the last filled one."""
        screen = self._screen
        rows = [*screen.history.top, *(screen.buffer[row] for row in range(screen.lines))]
        found = []
        for row in rows:
            width = max(row, default=-1) + 1
            # the second half of a wide character is an empty cell of its own
            found.append("".join(row[x].data for x in range(width)).rstrip())
        while found and not found[-1]:
            found.pop()
        return found

    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines())

    @property
    def cursor(self) -> tuple[int, int]:
        """Column and row of the cursor, from 0."""
        return self._screen.cursor.x, self._screen.cursor.y

    @property
    def cursor_hidden(self) -> bool:
        """Whether the cursor cannot be seen."""
        return self._screen.cursor.hidden
