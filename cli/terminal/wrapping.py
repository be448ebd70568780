"""Wraps lines that are too long for a narrow screen. Knows text and a width."""

import re
import textwrap

MIN_TEXT_COLUMNS = 24  # narrower text goes below its label


def wrap_hanging(text: str, width: int) -> str:
    """Wrap lines and indent what follows to the line's last column; 0: unchanged.

    Lines of parts joined by ` · ` are wrapped between the parts, others between words.

    When that column leaves too little room, its text goes below the label.
    """
    if not width:
        return text
    return "\n".join(row for line in text.split("\n") for row in wrap_hanging_line(line, width - 1))


def wrap_hanging_line(line: str, width: int) -> list[str]:
    """Wrap one line into rows."""
    if len(line) <= width:
        return [line]
    match = re.match(r" *(?:\S.*  +(?=\S))?", line)
    label = match.group() if match else ""
    text, indent = line[len(label) :], len(label)
    rows = []
    if label.strip() and width - indent < MIN_TEXT_COLUMNS:
        rows, label, indent = [label.rstrip()], " " * 6, 6
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
    """The first lines of a text and the last one, with a note of how many were left out."""
    if left_out := max(len(lines) - 4, 0):
        return [*lines[:3], f"… {left_out:,} more lines", lines[-1]]
    return lines
