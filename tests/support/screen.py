"""A terminal screen made with pyte: the visible rows, and those that scrolled away."""

import io
from collections.abc import Callable
from copy import deepcopy

import pyte


class Memory(pyte.HistoryScreen):
    """Keeps rows that are erased from the upper left corner on, as tmux does."""

    def erase_in_display(self, how: int = 0, *args, **kwargs) -> None:
        if how == 0 and (self.cursor.x, self.cursor.y) == (0, 0):
            rows = [deepcopy(self.buffer[row]) for row in range(self.lines)]
            while rows and not any(cell.data.strip() for cell in rows[-1].values()):
                rows.pop()
            self.history.top.extend(rows)
        super().erase_in_display(how, *args, **kwargs)


class Screen:
    """A terminal without reflow, such as xterm, with its whole history."""

    def __init__(self, columns: int, rows: int):
        self._screen = Memory(columns, rows, history=100_000, ratio=0.5)
        self._stream = pyte.Stream(self._screen)
        self.written = 0  # characters
        self.writes = 0
        self.on_write: Callable[[str], str] | None = None  # changes the output, to plant a fault

    def size(self) -> tuple[int, int]:
        return self._screen.columns, self._screen.lines

    def write(self, text: str) -> None:
        """Show a program's output; newlines become CR LF, as in a terminal's line discipline."""
        self.written += len(text)
        self.writes += 1
        if self.on_write:
            text = self.on_write(text)
        self._stream.feed(text.replace("\n", "\r\n"))

    def resize(self, columns: int, rows: int) -> None:
        """Change the window size.

        As in terminals, but not in pyte: rows below the cursor are dropped first. Then rows at the
        top move to the history, and the cursor moves up with them.
        """
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
        """All lines of the history and the screen, without empty ones at the end."""
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
        return "\n".join(self.lines())

    @property
    def cursor(self) -> tuple[int, int]:
        return self._screen.cursor.x, self._screen.cursor.y

    @property
    def cursor_hidden(self) -> bool:
        return self._screen.cursor.hidden


class Wire(io.StringIO):
    """What stands for stdout: a terminal that shows everything on a screen."""

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, screen: Screen):
        super().__init__()
        self.screen = screen

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.screen.write(text)
        return len(text)
