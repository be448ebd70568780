"""The file of this machine's kernel results, so that each kernel is proven only once.

A result holds for one chip, system, version of MLX and of mlx-lm, source of the kernels, and shapes
of a pair. With any other of these, or an unreadable file, the kernels are proven again.
"""

import hashlib
import json
import logging
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
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
from dflash_mlx.progress import Progress, silent

from .prove import KernelResult, OnResult, prove
from .shapes import Shapes
from .times import Clock, Timed
from .trials import TRIALS, Trial

FORMAT = 2
MAX_ENTRIES = 16  # of the file; the oldest are dropped

log = logging.getLogger(__name__)


def results_file() -> Path:
    """The path of the file of results. The file may not exist."""
    return cache_file("kernels.json")


@cache
def source_hash() -> str:
    """A hash of the Metal sources, and of the Python modules that launch them."""
    found = hashlib.sha256()
    for package in ("dflash_mlx.metal_kernels", "dflash_mlx.kernels"):
        for file in sorted(files(package).iterdir(), key=lambda file: file.name):
            if file.name.endswith((".metal", ".h", ".py")):
                found.update(f"{file.name}\n".encode() + file.read_bytes())
    return found.hexdigest()[:24]


def machine_key() -> str:
    """A hash of what results depend on besides the model: chip, system, versions, sources."""
    info = mx.device_info()
    chip = [str(info.get(name)) for name in ("device_name", "architecture")]
    parts = [*chip, platform.release(), *map(version, ("mlx", "mlx-lm")), source_hash()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def result_key(shapes: Shapes) -> str:
    """The key of an entry: this machine, and the shapes of a pair."""
    return f"{machine_key()}-{hashlib.sha256(repr(shapes).encode()).hexdigest()[:24]}"


def read_results(file: Path) -> dict[str, dict[str, KernelResult]]:
    """The results of a file by key and operation; empty without a file, or if it is damaged."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            log.warning("the kernels in %s are of another version and are proven again", file)
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


def from_json(name: str, parts: dict[str, Any]) -> KernelResult:
    """A result from its JSON object. Raises ValueError or TypeError for another object."""
    sizes = tuple(Timed(tuple(size), *rest) for size, *rest in parts.pop("sizes", ()))
    found = KernelResult(**parts, sizes=sizes)
    timed = [number for one in sizes for number in (*one.size, *one[1:])]
    numbers = (found.error, found.seconds, found.ratio, *timed)
    if (
        found.name != name
        or not isinstance(found.right, bool)
        or not isinstance(found.reason, str)
        or not (found.right or found.reason)
        or not all(number is None or isinstance(number, int | float) for number in numbers)
    ):
        raise ValueError("this is no result")
    return found


def write_results(
    file: Path, key: str, results: Iterable[KernelResult] = (), *, anew: bool = False
) -> bool:
    """Add results to an entry of a file; with `anew` the entry's old results are dropped.

    Returns False, with a warning in the log, if the file cannot be written.
    """
    known = read_results(file)
    entry = {} if anew else known.get(key, {})
    known.pop(key, None)
    entry |= {result.name: result for result in results}
    entries = [*known.items(), (key, entry)][-MAX_ENTRIES:]
    plain = {k: {name: asdict(result) for name, result in e.items()} for k, e in entries}
    try:
        replace_json(file, {"format": FORMAT, "verdicts": plain})
    except OSError as error:
        log.warning("the verdicts on kernels cannot be kept in %s: %s", file, error.strerror)
        return False
    return True


def latest_results() -> dict[str, KernelResult]:
    """The last entry of this machine, for any model, by operation; empty if there is none."""
    current = machine_key()
    entries = [e for key, e in read_results(results_file()).items() if key.startswith(current)]
    return entries[-1] if entries else {}


def proven(
    kernels: Kernels,
    shapes: Shapes,
    *,
    clock: Clock = time.perf_counter,
    trials: Sequence[Trial] = TRIALS,
    on_kernels: Progress = silent,
) -> Kernels:
    """The kernels with those disabled that are wrong or slow at these shapes on this machine.

    The results are read from the file; missing ones are found now and written to it. `on_kernels`
    is called with the numbers of operations compared, and of all.
    """
    assert kernels.launcher is not None
    known = read_results(results_file()).get(result_key(shapes), {})
    used = [trial.name for trial in trials if trial.fitting(shapes)]
    compared = set[str]()

    def report(result: KernelResult) -> None:
        on_kernels(len(compared), len(used))
        compared.add(result.name)

    if not all(name in known and known[name].final for name in used):
        options: dict[str, Any] = {"known": known, "clock": clock, "trials": trials}
        found = prove_and_keep(kernels.launcher, shapes, on_result=report, **options)
        known = {result.name: result for result in found}
    return apply_results(kernels, [known[name] for name in used])


def prove_and_keep(
    launcher: Launcher,
    shapes: Shapes,
    *,
    on_result: OnResult = lambda _: None,
    known: Mapping[str, KernelResult] | None = None,
    **options: Any,
) -> tuple[KernelResult, ...]:
    """As `prove`; writes each result to the file at once.

    Also `STARTED` is written, so that a kernel that crashes the process is off at the next start.
    On an exception, such as Ctrl-C, the entry is emptied.
    """
    file, key = results_file(), result_key(shapes)
    kept = write_results(file, key, anew=not known)

    def keep(result: KernelResult) -> None:
        if kept:  # else a warning was logged
            write_results(file, key, [result])
        on_result(result)

    try:
        return prove(launcher, shapes, on_result=keep, known=known, **options)
    except BaseException:
        if kept:
            write_results(file, key, anew=True)
        raise


def apply_results(kernels: Kernels, results: Iterable[KernelResult]) -> Kernels:
    """The kernels with only those enabled whose result allows it.

    One that was timed at several sizes runs where it won. In exact mode a slow kernel is used, too:
    stock MLX cannot replace it there.
    """
    on, off, wrong, sizes = set(), {}, set(), dict[str, frozenset[Any]]()
    for result in results:
        if not result.reason or (kernels.exact and result.right):
            on.add(result.name)
            if result.sizes and not kernels.exact:
                sizes[result.name] = frozenset(timed.size for timed in result.sizes if timed.won)
        else:
            off[result.name] = result.reason
            wrong |= set() if result.right else {result.name}
    return replace(kernels, on=frozenset(on), off=off, wrong=frozenset(wrong), sizes=sizes)
