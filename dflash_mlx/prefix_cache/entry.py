"""What a file of the cache is of: rows of some tokens, or the layer states after some token.

An entry's name is a hash of the tokens it is of and of all before them, so a file cannot be taken
for that of another text. Does not know arrays of MLX, or where files lie.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .tensor_file import Damaged, Head

FORMAT = "1"
ROOT = "0" * 32  # the name of nothing, from which all texts go on
Kind = Literal["rows", "states"]


@dataclass(frozen=True, slots=True)
class Entry:
    """`tokens` [n], int32, of a text from its token `start` on, behind the entry `parent`.

    Of the kind "states" it has no tokens: these are the states after `start` tokens, in `parent`.
    `drafted`: the drafter's rows are in it too. `nbytes` are those of its file.
    """

    name: str
    kind: Kind
    parent: str
    start: int
    tokens: np.ndarray
    drafted: bool
    nbytes: int = 0

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.name}.{self.kind}.safetensors"

    @property
    def notes(self) -> dict[str, str]:
        """What its file says of it."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "name": self.name,
            "parent": self.parent,
            "start": str(self.start),
            "drafted": "yes" if self.drafted else "no",
        }


def name_of(parent: str, start: int, tokens: np.ndarray) -> str:
    """The name of the entry of these tokens; with none, of the states after `start` tokens."""
    digest = hashlib.sha256(f"{parent} {start} ".encode())
    digest.update(np.ascontiguousarray(tokens, dtype="<i4").data)
    return digest.hexdigest()[:32]


def entry_of(head: Head, file_name: str, nbytes: int) -> Entry:
    """The entry of a file. Raises Damaged where its name is not that of its tokens."""
    notes = head.notes
    try:
        found = Entry(
            notes["name"],
            "states" if notes["kind"] == "states" else "rows",
            notes["parent"],
            int(notes["start"]),
            head.first.astype(np.int32),
            notes["drafted"] == "yes",
            nbytes,
        )
    except (KeyError, ValueError) as error:
        raise Damaged from error
    honest = found.name == name_of(found.parent, found.start, found.tokens)
    if not honest or found.file_name != file_name or notes.get("format") != FORMAT:
        raise Damaged
    return found
