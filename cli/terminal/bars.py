"""Shares as horizontal bars.

Knows counts and the width of the terminal, not what is counted.
"""

from .output import Output, stderr_columns

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
    """A share of BAR_CELLS as a bar, in eighths of a cell unless ASCII is needed."""
    if out.ascii:
        return "#" * round(share * BAR_CELLS)
    eighths = round(share * BAR_CELLS * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
