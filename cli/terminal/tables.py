"""Tables for a terminal: columns under a header rule, or one line per cell on a narrow screen.

Knows cells and columns, not where the lines go.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode as Node
    from rich.console import Console
    from rich.text import Text

    Row = Sequence[tuple[Text, str]]  # cells: text and alignment

MIN_COLUMN_WIDTH = 10  # cells, for a column with words that long
COLUMN_GAP = 3  # cells between two columns


def table_lines(console: "Console", rows: Sequence["Row"], width: int, rule: str) -> list["Text"]:
    """Lines of a table; the first row is its header, `rule` the character that underlines it."""
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    head, body = rows[0], rows[1:]
    word_widths = (longest_word(row[index][0] for row in rows) for index in range(len(head)))
    if (
        body
        and sum(min(width_of_word, MIN_COLUMN_WIDTH) + COLUMN_GAP for width_of_word in word_widths)
        - COLUMN_GAP
        > width
    ):
        return record_lines(console, head, body, width)
    blank = "    \n"
    box = Box(blank * 2 + f" {rule * 2} \n" + blank * 5, ascii=True)
    table = Table(box=box, show_edge=False, pad_edge=False, header_style="bold", border_style="dim")
    for text, justify in head:
        table.add_column(text, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in body:
        table.add_row(*(text for text, _ in row))
    lines = console.render_lines(table, console.options.update(width=width), pad=False)
    return [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines]


def record_lines(
    console: "Console", head: "Row", body: Iterable["Row"], width: int
) -> list["Text"]:
    """A table as records: each cell on its own line after its column's name."""
    from rich.text import Text

    lines: list[Text] = []
    for row in body:
        lines += [Text()] if lines else []
        for (name, _), (text, _) in zip(head, row, strict=True):
            label = (f"{name.plain}: ", "bold") if name.plain else ""
            lines += Text.assemble(label, text).wrap(console, width, overflow="fold")
    return lines


def longest_word(texts: Iterable["Text"]) -> int:
    """Width of the longest word."""
    from rich.cells import cell_len

    return max((cell_len(word) for text in texts for word in text.plain.split()), default=0)


def cell_alignment(cell: "Node") -> str:
    """The alignment of a Markdown table cell."""
    return str(cell.attrs.get("style", "")).removeprefix("text-align:") or "left"
