"""A file of results that a later run goes on with: a line about the run, then one a measurement.

The first line says of what pair, settings, machine and versions the others are; a run that differs
in any of these is refused, since its numbers cannot stand beside them, and so is one while another
is writing. A last line that was cut off is dropped. Knows records, not how they are made.
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
FIRST = b'{"kind": "run"'  # what a file begins with
Facts = dict[str, Any]  # plain JSON values, the same after a way through a file


class Results:
    """The measurements of one run, in memory and, with a path, in a file that grows with them."""

    def __init__(self, facts: Facts, path: Path | None = None):
        """Read what is in the file, and keep others from writing to it until `close`.

        DFlashError when it is of another run, being written to, or cannot be used.
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
            self._go_on(self._file, path)
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

    def _go_on(self, file: BinaryIO, path: Path) -> None:
        file.seek(0)
        held = file.read()
        whole = held[: held.rfind(b"\n") + 1]
        if not whole and held[: len(FIRST)] != FIRST[: len(held)]:
            raise not_results(path, 1)
        self._read(whole.decode("utf-8"), path)
        file.truncate(len(whole))
        if not whole:
            self._append({"kind": "run", **self.facts})

    def close(self) -> None:
        """Nothing more is written."""
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
        """Take a record in, and write it at once."""
        self.records[record.key] = record
        self._append({"kind": "answer", **record.data()})

    def keep_curve(self, curve: Curve) -> None:
        """Take the costs of a pass in, and write them at once."""
        self.curve = curve
        self._append({"kind": "costs", **curve.data()})

    def of(self, schedule: Schedule, questions: Sequence[Question]) -> list[Record]:
        """The records that a schedule asks for and that are there, in the schedule's order."""
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
        change = difference(found, self.facts)
        if change is not None:
            raise DFlashError(
                f"'{path}' holds results of another run: {change}.",
                hint="repeat that run's settings to go on with it, or give --out another file",
            )


def difference(found: Facts, wanted: Facts, place: str = "") -> str | None:
    """The first fact that differs between a file and this run, in words."""
    for name in dict.fromkeys([*found, *wanted]):
        here, now = found.get(name), wanted.get(name)
        label = f"{place} {name}".strip().replace("_", " ")
        if isinstance(here, dict) and isinstance(now, dict):
            if (inner := difference(here, now, label)) is not None:
                return inner
        elif here != now:
            return f"its {label} is {said(here)}, now it is {said(now)}"
    return None


def said(value: Any) -> str:
    """A fact in a sentence."""
    return "not set" if value is None else f"{value}"


def not_results(path: Path, number: int) -> DFlashError:
    """The fault of a file that is something else."""
    return DFlashError(
        f"line {number} of '{path}' is no benchmark result.", hint="give --out another file"
    )
