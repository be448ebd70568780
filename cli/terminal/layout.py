"""How lines that are too long for a narrow screen are broken. Knows text and a width."""

import re
import textwrap

NARROW = 24  # columns that are too few for a column of words


def folded(line: str, width: int) -> str:
    """A line of parts joined by dots, broken between parts where the screen is narrow; 0: as is."""
    if not width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    rows = [""]
    for part in line.strip().split(" · "):
        longer = f"{rows[-1]} · {part}" if rows[-1] else indent + part
        if rows[-1] and len(longer) >= width:
            rows.append(indent + part)
        else:
            rows[-1] = longer
    return "\n".join(rows)


def hanging(text: str, width: int) -> str:
    """Lines broken between words, what follows below the last column of each; 0: as they are.

    Where that column leaves little room it moves below the others.
    """
    if not width:
        return text
    return "\n".join(row for line in text.split("\n") for row in hanging_rows(line, width - 1))


def hanging_rows(line: str, width: int) -> list[str]:
    """One line as rows."""
    if len(line) <= width:
        return [line]
    start = re.match(r" *(?:\S.*  +(?=\S))?", line)
    head = start.group() if start else ""
    tail, column = line[len(head) :], len(head)
    rows = []
    if head.strip() and width - column < NARROW:
        rows, head, column = [head.rstrip()], " " * 6, 6
    wrapped = textwrap.wrap(tail, max(width - column, 1), break_on_hyphens=False)
    return rows + [(head if not n else " " * column) + row for n, row in enumerate(wrapped)]
