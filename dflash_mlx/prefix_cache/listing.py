"""What lies on disk, as texts: their tokens' count, size and age, and whose pair they are.

Never what they say. Imports no MLX.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .entry import Entry
from .folder import LABELS, Folder, Labels


@dataclass(frozen=True, slots=True)
class Text:
    """A text up to its last token that is held, in the folder of a pair.

    `files` are those that no other text needs, its end first; `nbytes` are theirs. `used` is the
    time of the last use, in seconds since 1970.
    """

    name: str
    labels: Labels
    tokens: int
    nbytes: int
    used: float
    files: tuple[Path, ...]

    def remove(self) -> int:
        """Remove what no other text needs: the bytes that were freed."""
        for file in self.files:
            file.unlink(missing_ok=True)
        return self.nbytes


def texts(root: Path) -> list[Text]:
    """All texts of all pairs, the one used last first; damaged files are left out."""
    found = [text for folder in folders(root) for text in texts_of(folder)]
    return sorted(found, key=lambda text: -text.used)


def folders(root: Path) -> list[Folder]:
    """The folders of all pairs."""
    return [Folder(path.parent.name, root) for path in sorted(root.glob(f"*/{LABELS}"))]


def clear(root: Path) -> int:
    """Remove all files, damaged ones too: the bytes that were freed."""
    freed = 0
    for folder in folders(root):
        for file in [*folder.path.iterdir()]:
            freed += file.stat().st_size
            file.unlink(missing_ok=True)
        folder.path.rmdir()
    return freed


def texts_of(folder: Folder) -> Iterator[Text]:
    """The texts of one pair."""
    try:
        labels = folder.labels
    except (OSError, ValueError, KeyError, TypeError):
        return
    entries = [one for one in folder.new_entries() if isinstance(one, Entry)]
    rows = {entry.name: entry for entry in entries if entry.kind == "rows"}
    states = [entry for entry in entries if entry.kind == "states"]
    followers: dict[str, list[Entry]] = {name: [] for name in rows}
    for entry in rows.values():
        followers.setdefault(entry.parent, []).append(entry)
    for entry in rows.values():
        end = entry.start + len(entry.tokens)
        if any(follower.start == end for follower in followers[entry.name]):
            continue
        own = [*alone(entry, rows, followers)]
        names = {one.name for one in own}
        parts = [*(one for one in states if one.parent in names), *own]
        yield Text(
            entry.name,
            labels,
            end,
            sum(one.nbytes for one in parts),
            (folder.path / entry.file_name).stat().st_mtime,
            tuple(folder.path / one.file_name for one in parts),
        )


def alone(
    entry: Entry, rows: dict[str, Entry], followers: dict[str, list[Entry]]
) -> Iterator[Entry]:
    """An entry and those before it, as far as nothing else goes on from them."""
    one: Entry | None = entry
    below = 0
    while one is not None and len(followers[one.name]) == below:
        yield one
        one, below = rows.get(one.parent), 1
