"""Stores measurements of this machine between runs, in one JSON file for each kind.

The file is `{"format": number, SECTION: {key: entry}}`. A key is the fingerprint of everything that
a measurement depends on, so an entry for another state of the machine is never read.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .checkpoint import cache_file, replace_json

T = TypeVar("T")
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

log = logging.getLogger(__name__)


def fingerprint(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class MeasurementStore(Generic[T]):
    """The measurements of one kind, in the file `name` of the user's cache folder.

    section: SECTION in the file. what: their name in the log. limit: the maximum number of entries;
    the oldest are dropped. parse: from an entry to a measurement, raises any of DAMAGED for an
    invalid one. dump: from a measurement to an entry. Invalid entries are left out.
    """

    name: str
    section: str
    what: str
    format: int
    limit: int
    parse: Callable[[Any], T]
    dump: Callable[[T], Any]

    @property
    def path(self) -> Path:
        return cache_file(self.name)

    def read(self) -> dict[str, T]:
        """All valid measurements by key, the newest last."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["format"] != self.format:
                log.warning(
                    "the %s in %s are of another version and are measured again",
                    self.what,
                    self.path,
                )
                return {}
            entries = data[self.section].items()
        except FileNotFoundError:
            return {}
        except (OSError, *DAMAGED) as error:
            log.warning("the %s in %s are measured again: %r", self.what, self.path, error)
            return {}
        measurements = {}
        for key, entry in entries:
            try:
                measurements[key] = self.parse(entry)
            except DAMAGED as error:
                log.warning(
                    "the %s %s in %s are measured again: %r", self.what, key, self.path, error
                )
        return measurements

    def write(self, key: str, measurement: T) -> bool:
        """Add a measurement as the newest; the file is replaced atomically.

        Returns False and logs a warning if the file cannot be written.
        """
        measurements = self.read()
        measurements.pop(key, None)
        newest = [*measurements.items(), (key, measurement)][-self.limit :]
        entries = {known: self.dump(value) for known, value in newest}
        try:
            replace_json(self.path, {"format": self.format, self.section: entries})
        except OSError as error:
            log.warning("the %s cannot be kept in %s: %s", self.what, self.path, error.strerror)
            return False
        return True
