"""Bars and long lines of text on a terminal."""

import math
import re
import textwrap
from collections.abc import Sequence

from .output import Output, stderr_columns

# Shares as horizontal bars.

BAR_CELLS = 8  # width of 100 %
EIGHTHS = " ▏▎▍▌▋▊▉█"


def position_rows(accepted: list[int], verifies: int, out: Output) -> list[str]:
    """The acceptance rate of each draft position as a bar, in columns of equal length."""
    if not verifies or not accepted:
        return []
    cells = [
        f"{position:2} {bar(count / verifies, out):{BAR_CELLS}} {count / verifies:4.0%}"
        for position, count in enumerate(accepted, 1)
    ]
    across = max(1, min(4, ((stderr_columns() or 80) - 16) // (BAR_CELLS + 11)))
    height = -(-len(cells) // across)
    return ["   ".join(cells[row::height]) for row in range(height)]


def bar(share: float, out: Output) -> str:
    """A bar for a share of BAR_CELLS, in eighths of a cell unless ASCII is needed."""
    if out.ascii:
        return "#" * round(share * BAR_CELLS)
    eighths = round(share * BAR_CELLS * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


HEIGHTS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], out: Output) -> str:
    """Columns as high as the values' shares of the largest; in ASCII digits from 1 to 8."""
    top = max(values)
    heights = [max(math.ceil(value / top * len(HEIGHTS)), 1) for value in values]
    return "".join(str(height) if out.ascii else HEIGHTS[height - 1] for height in heights)


# Wraps lines that are too long for a narrow screen.

MIN_TEXT_COLUMNS = 24  # narrower text goes below its label


def wrap_hanging(text: str, width: int) -> str:
    """Wrap lines to a width; 0 leaves them unchanged.

    Lines of parts joined by ` · ` are wrapped between the parts, others between words. Further rows
    are indented to the line's last column. If that column leaves too little room, its text goes
    below the label.
    """
    if not width:
        return text
    return "\n".join(row for line in text.split("\n") for row in wrap_hanging_line(line, width - 1))


def wrap_hanging_line(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    match = re.match(r" *(?:\S.*  +(?=\S))?", line)
    label = match.group() if match else ""
    text = line[len(label) :]
    indent = len(label)
    rows = []
    if label.strip() and width - indent < MIN_TEXT_COLUMNS:
        rows = [label.rstrip()]
        label = " " * 6
        indent = 6
    wrapped = fill(text, max(width - indent, 1))
    return rows + [(label if not n else " " * indent) + row for n, row in enumerate(wrapped)]


def fill(text: str, width: int) -> list[str]:
    """The rows of a text; a part that is longer than a row is wrapped between words."""
    rows: list[str] = []
    for part in text.split(" · "):
        if rows and len(rows[-1]) + len(part) + 3 <= width:
            rows[-1] += f" · {part}"
        else:
            rows += textwrap.wrap(part, width, break_on_hyphens=False)
    return rows


def excerpt(lines: list[str]) -> list[str]:
    if left_out := max(len(lines) - 4, 0):
        return [*lines[:3], f"… {left_out:,} more lines", lines[-1]]
    return lines
