"""The table of `dflash models list`: one row a pair or a cached model, fitted to the terminal.

Knows how rows look, and asks the engine for what is in them.
"""

import shutil
from dataclasses import asdict, dataclass
from typing import Any

from ..output import Output

FITS = {"ok": "yes", "warn": "tight", "refuse": "no"}
TITLES = ("TARGET", "DRAFTER", "BLOCK", "SIZE", "MEMORY", "CACHED", "FITS")
# Columns that are shown, from the widest terminal to the narrowest; then two lines a row.
FOLDS = ((0, 1, 2, 3, 4, 5, 6), (0, 1, 3, 5, 6), (0, 3, 4, 5, 6), (0, 3, 5, 6))
RIGHT = (2, 3, 4)  # columns of numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A pair, or a cached model that is in no known pair; sizes in bytes."""

    target: str
    draft: str | None = None
    block: int | None = None
    target_bytes: int | None = None
    draft_bytes: int | None = None
    memory_bytes: int | None = None
    estimated: bool = False
    cached: str = "no"
    fits: str | None = None
    lacks: str = ""
    note: str = ""

    def data(self) -> dict[str, Any]:
        """The row as JSON has it."""
        found = asdict(self)
        lacks = found.pop("lacks")
        return {**found, "supported": not lacks, "reason": lacks or None}

    def cells(self) -> tuple[str, ...]:
        """The row as the table has it."""
        about = "~" if self.estimated else ""
        size = "?" if self.target_bytes is None else f"{self.target_bytes / 1e9:.1f}"
        if self.draft is not None:
            size += "+?" if self.draft_bytes is None else f"+{self.draft_bytes / 1e9:.1f}"
        memory = "?" if self.memory_bytes is None else f"~{gigabytes(self.memory_bytes)}"
        return (
            self.target,
            self.draft or "–",
            str(self.block or "–"),
            f"{about}{size} GB",
            memory,
            self.cached,
            "not yet" if self.lacks else self.fits or "?",
        )


def gigabytes(count: int) -> str:
    """Bytes as the table shows them."""
    return f"{count / 1e9:.1f} GB"


def known_rows() -> list[Row]:
    """Every pair of the registry, those that this engine runs first."""
    from dflash_mlx.hub.cache import cached_state
    from dflash_mlx.hub.memory import judge, working_set
    from dflash_mlx.hub.registry import entries

    limit = working_set()
    rows = []
    for entry in sorted(entries(), key=lambda entry: bool(entry.lacks)):
        memory = entry.memory_bytes
        rows.append(
            Row(
                target=entry.target,
                draft=entry.draft,
                block=entry.block,
                target_bytes=entry.target_bytes,
                draft_bytes=entry.draft_bytes,
                memory_bytes=memory,
                estimated=entry.estimated,
                cached=both(cached_state(entry.target), cached_state(entry.draft)),
                fits=None if memory is None else FITS[judge(memory, limit)],
                lacks=entry.lacks,
                note=entry.note,
            )
        )
    return rows


def both(target: str, draft: str) -> str:
    """What the cache has of a pair; a drafter alone counts for nothing, targets may share it."""
    if target == "yes":
        return {"yes": "yes", "partly": "partly", "no": "target only"}[draft]
    return target


def cached_rows() -> list[Row]:
    """The cached models that are in no known pair."""
    from dflash_mlx.hub.cache import cached_bytes, cached_repos, cached_state
    from dflash_mlx.hub.memory import judge, working_set
    from dflash_mlx.hub.registry import entries

    known = {name for entry in entries() for name in (entry.target, entry.draft)}
    limit = working_set()
    rows = []
    for repo in cached_repos():
        if repo not in known:
            size, state = cached_bytes(repo), cached_state(repo)
            fits = FITS[judge(size, limit)] if state == "yes" else None
            rows.append(Row(target=repo, target_bytes=size, cached=state, fits=fits))
    return rows


def show_rows(rows: list[Row], out: Output) -> None:
    """Write the table: tabs into a pipe; on a terminal as many columns as there is room for."""
    cells = [TITLES, *(row.cells() for row in rows)]
    if not out.answers:
        out.write("".join("\t".join(line) + "\n" for line in cells))
        return
    out.write("".join(out.glyphs(line) + "\n" for line in fold(cells, width())))
    if any(row.lacks for row in rows):
        out.note("not yet: this version does not run the target's type or the drafter's kind")


def width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size().columns


def fold(cells: list[tuple[str, ...]], room: int) -> list[str]:
    """The lines of a table that is at most `room` wide."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for chosen in FOLDS:
        if sum(widths[i] + 2 for i in chosen) - 2 <= room:
            return [line(row, chosen, widths) for row in cells]
    lines = []
    for row in cells[1:]:
        lines += [row[0], "  " + " · ".join((row[3], f"cached {row[5]}", f"fits {row[6]}"))]
    return lines


def line(row: tuple[str, ...], chosen: tuple[int, ...], widths: list[int]) -> str:
    """One line with the chosen columns."""
    parts = [row[i].rjust(widths[i]) if i in RIGHT else row[i].ljust(widths[i]) for i in chosen]
    return "  ".join(parts).rstrip()
