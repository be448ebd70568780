"""Tables for a terminal: columns under a rule, or a line for each cell where columns do not fit.

Knows cells and columns, not where the lines go.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode as Node
    from rich.console import Console
    from rich.text import Text

    Row = Sequence[tuple[Text, str]]  # a cell: text and alignment

WORD = 10  # cells a column should have, if it has words that long
BETWEEN = 3  # cells between two columns


def table_lines(console: "Console", rows: Sequence["Row"], width: int, rule: str) -> list["Text"]:
    """Lines of a table whose first row is its head; `rule` is the sign that underlines it."""
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    head, body = rows[0], rows[1:]
    words = (longest_word(row[place][0] for row in rows) for place in range(len(head)))
    if body and sum(min(word, WORD) + BETWEEN for word in words) - BETWEEN > width:
        return record_lines(console, head, body, width)
    blank = "    \n"
    box = Box(blank * 2 + f" {rule * 2} \n" + blank * 5, ascii=True)
    table = Table(box=box, show_edge=False, pad_edge=False, header_style="bold", border_style="dim")
    for text, side in head:
        table.add_column(text, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in body:
        table.add_row(*(text for text, _ in row))
    found = console.render_lines(table, console.options.update(width=width), pad=False)
    return [Text.assemble(*((part.text, part.style or "") for part in line)) for line in found]


def record_lines(
    console: "Console", head: "Row", body: Iterable["Row"], width: int
) -> list["Text"]:
    """A table row by row: each cell on a line of its own, after the name of its column."""
    from rich.text import Text

    found: list[Text] = []
    for row in body:
        found += [Text()] if found else []
        for (name, _), (text, _) in zip(head, row, strict=True):
            label = (f"{name.plain}: ", "bold") if name.plain else ""
            found += Text.assemble(label, text).wrap(console, width, overflow="fold")
    return found


def longest_word(texts: Iterable["Text"]) -> int:
    """Cells of the longest word."""
    from rich.cells import cell_len

    return max((cell_len(word) for text in texts for word in text.plain.split()), default=0)


def alignment(cell: "Node") -> str:
    """How a cell says that it is aligned."""
    return str(cell.attrs.get("style", "")).removeprefix("text-align:") or "left"
