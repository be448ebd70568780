"""The results of a run, in a JSONL file that a later run may continue.

The first line holds the facts of the run, each other line one measurement. A run with other facts
is refused, and so is a second writer. An incomplete last line is dropped.
"""

import fcntl
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from dflash_mlx.errors import DFlashError, first_line

from .curve import Curve, curve_of
from .questions import Question
from .record import Key, Record, record_of
from .schedule import Schedule

FORMAT = 1
FILE_START = b'{"kind": "run"'
Facts = dict[str, Any]  # JSON values


class Results:
    """The measurements of one run, in memory and, with a path, in a file."""

    def __init__(self, facts: Facts, path: Path | None = None):
        """Read the file and lock it until `close`.

        Raises DFlashError if the file has other facts, is locked, or cannot be used.
        """
        self.facts = {"format": FORMAT, **json.loads(json.dumps(facts))}
        self.path = path
        self.records: dict[Key, Record] = {}
        self.curve: Curve | None = None
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._open(path)
            except BaseException:
                self.close()
                raise

    def _open(self, path: Path) -> None:
        try:
            self._file = path.open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
            self._resume(self._file, path)
        except UnicodeDecodeError:
            raise not_results(path, 1) from None
        except BlockingIOError:
            raise DFlashError(
                f"another benchmark is writing to '{path}'.",
                hint="wait until it is done, or give --out another file",
            ) from None
        except OSError as error:
            raise DFlashError(
                f"'{path}' cannot be written ({error.strerror or first_line(error)}).",
                hint="give --out a file in a folder that is there and that you may write to",
            ) from None

    def _resume(self, file: BinaryIO, path: Path) -> None:
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and content[: len(FILE_START)] != FILE_START[: len(content)]:
            raise not_results(path, 1)
        self._read(whole.decode("utf-8"), path)
        file.truncate(len(whole))
        if not whole:
            self._append({"kind": "run", **self.facts})

    def close(self) -> None:
        """Close and unlock the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "Results":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def keep(self, record: Record) -> None:
        """Add a record, and write it at once."""
        self.records[record.key] = record
        self._append({"kind": "answer", **record.data()})

    def keep_curve(self, curve: Curve) -> None:
        """Set the costs of a pass by width, and write them at once."""
        self.curve = curve
        self._append({"kind": "costs", **curve.data()})

    def of(self, schedule: Schedule, questions: Sequence[Question]) -> list[Record]:
        """The available records of a schedule, in its order."""
        keys = (key for key, _, _ in schedule.keys(questions))
        return [self.records[key] for key in keys if key in self.records]

    def _append(self, data: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(data).encode() + b"\n")
            self._file.flush()

    def _read(self, text: str, path: Path) -> None:
        for number, line in enumerate(text.split("\n")[:-1], 1):
            try:
                data = json.loads(line)
                kind = data.pop("kind")
                if number == 1:
                    self._check(data if kind == "run" else {}, path)
                elif kind == "answer":
                    record = record_of(data)
                    self.records[record.key] = record
                elif kind == "costs":
                    self.curve = curve_of(data)
                else:
                    raise KeyError(kind)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise not_results(path, number) from None

    def _check(self, found: Facts, path: Path) -> None:
        if not found:
            raise KeyError("run")
        change = first_difference(found, self.facts)
        if change is not None:
            raise DFlashError(
                f"'{path}' holds results of another run: {change}.",
                hint="repeat that run's settings to go on with it, or give --out another file",
            )


def first_difference(found: Facts, wanted: Facts, place: str = "") -> str | None:
    """The first difference between the facts of a file and of this run, as text; None if equal."""
    for name in dict.fromkeys([*found, *wanted]):
        old, new = found.get(name), wanted.get(name)
        label = f"{place} {name}".strip().replace("_", " ")
        if isinstance(old, dict) and isinstance(new, dict):
            if (inner := first_difference(old, new, label)) is not None:
                return inner
        elif old != new:
            return f"its {label} is {fact_text(old)}, now it is {fact_text(new)}"
    return None


def fact_text(value: Any) -> str:
    """A fact as text."""
    return "not set" if value is None else f"{value}"


def not_results(path: Path, number: int) -> DFlashError:
    """The error for a file that is not a file of results."""
    return DFlashError(
        f"line {number} of '{path}' is no benchmark result.", hint="give --out another file"
    )
