"""The verdicts on kernels of one machine, kept in a file: proven once, and anew when it changes.

A verdict counts for a chip, a system, versions of MLX and mlx-lm, the kernels' own texts and a
model's shapes. What cannot be read is proven again. Does not know how a kernel is proven.
"""

import hashlib
import json
import logging
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.files.user_cache import cache_file, replace_json
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import Launcher

from .prove import Clock, OnVerdict, Verdict, prove
from .shapes import Shapes
from .trials import TRIALS, Trial

FORMAT = 1
KEPT = 16  # entries of the file

log = logging.getLogger(__name__)


def verdict_file() -> Path:
    """Where verdicts are kept; it need not exist."""
    return cache_file("kernels.json")


@cache
def texts() -> str:
    """A hash of all that a kernel is made of: Metal texts, and what launches and compares them."""
    found = hashlib.sha256()
    for package in ("dflash_mlx.metal_kernels", "dflash_mlx.kernels"):
        for file in sorted(files(package).iterdir(), key=lambda file: file.name):
            if file.name.endswith((".metal", ".h", ".py")):
                found.update(f"{file.name}\n".encode() + file.read_bytes())
    return found.hexdigest()[:24]


def machine() -> str:
    """What verdicts depend on, whatever the model."""
    info = mx.device_info()
    chip = [str(info.get(name)) for name in ("device_name", "architecture")]
    parts = [*chip, platform.release(), *map(version, ("mlx", "mlx-lm")), texts()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def key_of(shapes: Shapes) -> str:
    """The name of an entry."""
    return f"{machine()}-{hashlib.sha256(repr(shapes).encode()).hexdigest()[:24]}"


def read_verdicts(file: Path) -> dict[str, dict[str, Verdict]]:
    """The verdicts in a file by key and name; none where there is no file or it is damaged."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            return {}
        return {
            key: {name: from_json(name, parts) for name, parts in entry.items()}
            for key, entry in data["verdicts"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning("the kernels in %s are proven again: %r", file, error)
        return {}


def from_json(name: str, parts: dict[str, Any]) -> Verdict:
    """A verdict as it was written; ValueError for what cannot be one."""
    found = Verdict(**parts)
    numbers = (found.error, found.seconds, found.ratio)
    if (
        found.name != name
        or not isinstance(found.right, bool)
        or not isinstance(found.reason, str)
        or not (found.right or found.reason)
        or not all(number is None or isinstance(number, int | float) for number in numbers)
    ):
        raise ValueError("this is no verdict")
    return found


def write_verdicts(
    file: Path, key: str, verdicts: Iterable[Verdict] = (), *, anew: bool = False
) -> bool:
    """Add verdicts to an entry of a file, or begin it anew; the newest entries stay.

    False where they cannot be kept, which is said.
    """
    known = read_verdicts(file)
    entry = {} if anew else known.get(key, {})
    known.pop(key, None)
    entry |= {verdict.name: verdict for verdict in verdicts}
    entries = [*known.items(), (key, entry)][-KEPT:]
    plain = {k: {name: asdict(verdict) for name, verdict in e.items()} for k, e in entries}
    try:
        replace_json(file, {"format": FORMAT, "verdicts": plain})
    except OSError as error:
        log.warning("the verdicts on kernels cannot be kept in %s: %s", file, error.strerror)
        return False
    return True


def latest() -> dict[str, Verdict]:
    """The newest verdicts of this machine by name, whatever the model was; none if none are."""
    here = machine()
    entries = [e for key, e in read_verdicts(verdict_file()).items() if key.startswith(here)]
    return entries[-1] if entries else {}


def proven(
    kernels: Kernels,
    shapes_of: Callable[[], Shapes],
    *,
    clock: Clock = time.perf_counter,
    trials: Sequence[Trial] = TRIALS,
) -> Kernels:
    """The kernels that may be used for a model: by the file, or proven now; then the file knows.

    Without a launcher nothing happens.
    """
    if kernels.launcher is None:
        return kernels
    shapes = shapes_of()
    known = read_verdicts(verdict_file()).get(key_of(shapes), {})
    used = [trial.name for trial in trials if trial.fitting(shapes)]
    if not all(name in known and known[name].final for name in used):
        found = prove_and_keep(kernels.launcher, shapes, known=known, clock=clock, trials=trials)
        known = {verdict.name: verdict for verdict in found}
    return with_verdicts(kernels, [known[name] for name in used])


def prove_and_keep(
    launcher: Launcher,
    shapes: Shapes,
    *,
    on_verdict: OnVerdict = lambda _: None,
    known: Mapping[str, Verdict] | None = None,
    **options: Any,
) -> tuple[Verdict, ...]:
    """`prove`, with everything that becomes known in the file at once.

    What has begun stands there too: a kernel that takes the whole program with it is off at the
    next start. Whoever breaks it off finds nothing in the file.
    """
    file, key = verdict_file(), key_of(shapes)
    kept = write_verdicts(file, key, anew=not known)

    def keep(verdict: Verdict) -> None:
        if kept:  # else it was said once
            write_verdicts(file, key, [verdict])
        on_verdict(verdict)

    try:
        return prove(launcher, shapes, on_verdict=keep, known=known, **options)
    except BaseException:
        if kept:
            write_verdicts(file, key, anew=True)
        raise


def with_verdicts(kernels: Kernels, verdicts: Iterable[Verdict]) -> Kernels:
    """Kernels of which only those are used that the verdicts allow.

    For exactness a slow kernel is better than none: nothing of MLX's own stands in for it there.
    """
    on, off, wrong = set(), {}, set()
    for verdict in verdicts:
        if not verdict.reason or (kernels.exact and verdict.right):
            on.add(verdict.name)
        else:
            off[verdict.name] = verdict.reason
            wrong |= set() if verdict.right else {verdict.name}
    return replace(kernels, on=frozenset(on), off=off, wrong=frozenset(wrong))
