"""Wraps lines that are too long for a narrow screen. Knows text and a width."""

import re
import textwrap

MIN_TEXT_COLUMNS = 24  # narrower text goes below its label


def wrap_parts(line: str, width: int) -> str:
    """Wrap a line of parts joined by ` · ` between the parts; width 0 leaves it unchanged."""
    if not width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    rows = [""]
    for part in line.strip().split(" · "):
        joined = f"{rows[-1]} · {part}" if rows[-1] else indent + part
        if rows[-1] and len(joined) >= width:
            rows.append(indent + part)
        else:
            rows[-1] = joined
    return "\n".join(rows)


def wrap_hanging(text: str, width: int) -> str:
    """Wrap lines between words and indent what follows to the line's last column; 0: unchanged.

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
    wrapped = textwrap.wrap(text, max(width - indent, 1), break_on_hyphens=False)
    return rows + [(label if not n else " " * indent) + row for n, row in enumerate(wrapped)]


def excerpt(lines: list[str]) -> list[str]:
    """The first lines of a text and the last one, with a note of how many were left out."""
    if left_out := max(len(lines) - 4, 0):
        return [*lines[:3], f"… {left_out:,} more lines", lines[-1]]
    return lines
