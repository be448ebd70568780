"""The table of `dflash models list`: one row per pair or cached model, fitted to the terminal.

Knows how rows look; the engine knows their contents.
"""

import shutil
from dataclasses import asdict, dataclass
from typing import Any

from ..terminal.output import Output

FIT_WORDS = {"ok": "yes", "warn": "tight", "refuse": "no"}
TITLES = ("TARGET", "DRAFTER", "BLOCK", "SIZE", "MEMORY", "CACHED", "FITS")
# Columns to show, from the widest terminal to the narrowest; the last resort is two lines a row.
COLUMN_SETS = ((0, 1, 2, 3, 4, 5, 6), (0, 1, 3, 5, 6), (0, 3, 4, 5, 6), (0, 3, 5, 6))
RIGHT_ALIGNED = (2, 3, 4)  # columns of numbers


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
        """The row as JSON."""
        fields = asdict(self)
        lacks = fields.pop("lacks")
        return {**fields, "supported": not lacks, "reason": lacks or None}

    def cells(self) -> tuple[str, ...]:
        """The row as table cells."""
        approximately = "~" if self.estimated else ""
        size = "?" if self.target_bytes is None else f"{self.target_bytes / 1e9:.1f}"
        if self.draft is not None:
            size += "+?" if self.draft_bytes is None else f"+{self.draft_bytes / 1e9:.1f}"
        memory = "?" if self.memory_bytes is None else f"~{gigabytes(self.memory_bytes)}"
        return (
            self.target,
            self.draft or "–",
            str(self.block or "–"),
            f"{approximately}{size} GB",
            memory,
            self.cached,
            "not yet" if self.lacks else self.fits or "?",
        )


def gigabytes(count: int) -> str:
    """Bytes as the table shows them."""
    return f"{count / 1e9:.1f} GB"


def known_rows() -> list[Row]:
    """Every pair of the registry; those that this engine can run come first."""
    from dflash_mlx.hub.cache import cached_state
    from dflash_mlx.hub.memory import memory_fit, working_set
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
                cached=pair_cached(cached_state(entry.target), cached_state(entry.draft)),
                fits=None if memory is None else FIT_WORDS[memory_fit(memory, limit)],
                lacks=entry.lacks,
                note=entry.note,
            )
        )
    return rows


def pair_cached(target: str, draft: str) -> str:
    """The cache state of a pair; a drafter alone does not count, because targets may share it."""
    if target == "yes":
        return {"yes": "yes", "partly": "partly", "no": "target only"}[draft]
    return target


def cached_rows() -> list[Row]:
    """The cached models that are in no known pair."""
    from dflash_mlx.hub.cache import cached_bytes, cached_repos, cached_state
    from dflash_mlx.hub.memory import memory_fit, working_set
    from dflash_mlx.hub.registry import entries

    paired = {name for entry in entries() for name in (entry.target, entry.draft)}
    limit = working_set()
    rows = []
    for repo in cached_repos():
        if repo not in paired:
            size, state = cached_bytes(repo), cached_state(repo)
            fits = FIT_WORDS[memory_fit(size, limit)] if state == "yes" else None
            rows.append(Row(target=repo, target_bytes=size, cached=state, fits=fits))
    return rows


def short_rows(rows: list[Row]) -> list[Row]:
    """The models that are downloaded, at least in part, then those that fit this machine.

    Of a target that is not downloaded only the smallest form is in it, which its short name means.
    """
    here = [row for row in rows if row.cached != "no"]
    known = {row.draft for row in here}  # all forms of a target have the same drafter
    smallest: dict[str | None, Row] = {}
    for row in sorted(rows, key=lambda row: row.target_bytes or 1 << 62):
        smallest.setdefault(row.draft, row)
    others = [row for draft, row in smallest.items() if draft not in known and not row.lacks]
    return here + [row for row in others if row.fits in ("yes", "tight")]


def show_rows(rows: list[Row], out: Output) -> None:
    """Write the table: tab-separated into a pipe, as many columns as fit on a terminal."""
    cells = [TITLES, *(row.cells() for row in rows)]
    if not out.stdout_is_tty:
        out.write("".join("\t".join(line) + "\n" for line in cells))
        return
    out.write(
        "".join(out.ascii_fallback(line) + "\n" for line in fit_rows(cells, terminal_width()))
    )
    if any(row.lacks for row in rows):
        out.note("not yet: this version does not run the target's type or the drafter's kind")


def terminal_width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size().columns


def fit_rows(cells: list[tuple[str, ...]], width: int) -> list[str]:
    """The lines of the table, at most `width` wide."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for indexes in COLUMN_SETS:
        if sum(widths[i] + 2 for i in indexes) - 2 <= width:
            return [format_row(row, indexes, widths) for row in cells]
    lines = []
    for row in cells[1:]:
        lines += [row[0], "  " + " · ".join((row[3], f"cached {row[5]}", f"fits {row[6]}"))]
    return lines


def format_row(row: tuple[str, ...], indexes: tuple[int, ...], widths: list[int]) -> str:
    """One line with the columns of `indexes`."""
    parts = [
        row[i].rjust(widths[i]) if i in RIGHT_ALIGNED else row[i].ljust(widths[i]) for i in indexes
    ]
    return "  ".join(parts).rstrip()
