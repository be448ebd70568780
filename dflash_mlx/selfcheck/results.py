"""The results of the self-check, and the file that keeps them: one check per machine."""

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from dflash_mlx.device import device_info
from dflash_mlx.files.folder import is_sidecar
from dflash_mlx.files.measurements import MeasurementStore, fingerprint
from dflash_mlx.kernels.dispatch import Kernels

from .shapes import Shapes
from .timing import Timed

UNUSED = "this model does not use it"
UNCHECKED = "not checked yet"
UNTIMED = "not timed yet"
NARROW = "all matrices are too narrow for it"
STARTED = "its last check did not end"


@dataclass(frozen=True, slots=True)
class KernelResult:
    """The result of one operation's kernel.

    right: False if the kernel raises, cannot be compared, or its outputs are wrong. error: the
    largest difference of an output from the reference's, divided by the larger of 1 and the
    absolute value of the reference; None if integers differ or nothing was compared. seconds: per
    call, ratio: to the time of stock MLX; None if not timed. reason: why the kernel is not used;
    empty if it is used. sizes: if it is timed at several, it is used where it is faster, also while
    others are not timed yet. `seconds` and `ratio` are then means of all sizes, weighted by their
    bytes. smaller: whether the chip refuses its largest threadgroups: `Op.smaller` launches it.
    """

    name: str
    right: bool
    error: float | None = None
    seconds: float | None = None
    ratio: float | None = None
    reason: str = ""
    sizes: tuple[Timed, ...] = ()
    smaller: bool = False

    @property
    def final(self) -> bool:
        """Whether the check is complete: compared, and timed if needed."""
        return self.reason not in (UNCHECKED, UNTIMED)

    @property
    def won(self) -> frozenset[tuple[int | str, ...]]:
        """The sizes at which the kernel is faster than stock MLX."""
        return frozenset(timed.size for timed in self.sizes if timed.won)

    @property
    def used(self) -> bool:
        return self.reason != UNUSED


def unchecked(name: str) -> KernelResult:
    return KernelResult(name, True, reason=UNCHECKED)


# The file of this machine's kernel results, so that each kernel is checked only once.


@cache
def source_hash() -> str:
    """A hash of the Metal sources, and of the Python modules that launch them."""
    digest = hashlib.sha256()
    for package in ("dflash_mlx.metal_kernels", "dflash_mlx.kernels"):
        for file in sorted(files(package).iterdir(), key=lambda file: file.name):
            if file.name.endswith((".metal", ".h", ".py")) and not is_sidecar(file.name):
                digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:24]


def machine_key() -> str:
    """A hash of all that results depend on except the model: chip, system, versions, sources."""
    info = device_info()
    chip = [str(info.get(name)) for name in ("device_name", "architecture")]
    parts = [*chip, platform.release(), *map(version, ("mlx", "mlx-lm")), source_hash()]
    return fingerprint(parts)


def result_key(shapes: Shapes) -> str:
    return f"{machine_key()}-{fingerprint([repr(shapes)])}"


def from_json(name: str, parts: dict[str, Any]) -> KernelResult:
    """A result from its JSON object. Raises ValueError or TypeError for another object."""
    sizes = tuple(Timed(tuple(size), *rest) for size, *rest in parts.pop("sizes", ()))
    result = KernelResult(**parts, sizes=sizes)
    numbers = (result.error, result.seconds, result.ratio, *(n for t in sizes for n in t[1:]))
    if (
        result.name != name
        or not isinstance(result.right, bool)
        or not isinstance(result.smaller, bool)
        or not isinstance(result.reason, str)
        or not (result.right or result.reason)
        or not all(number is None or isinstance(number, int | float) for number in numbers)
        or not all(isinstance(part, int | str) for timed in sizes for part in timed.size)
    ):
        raise ValueError("this is no result")
    return result


def results_of(entry: dict[str, dict[str, Any]]) -> dict[str, KernelResult]:
    """The results of an entry by operation. Raises ValueError or TypeError for another object."""
    return {name: from_json(name, parts) for name, parts in entry.items()}


def entry_of(results: dict[str, KernelResult]) -> dict[str, Any]:
    return {name: asdict(result) for name, result in results.items()}


STORE = MeasurementStore(
    "kernels.json", "verdicts", "kernels", format=4, limit=16, parse=results_of, dump=entry_of
)


def write_results(key: str, results: Iterable[KernelResult] = (), *, anew: bool = False) -> bool:
    """Add to an entry, or replace it (`anew`). Returns False, with a warning, if that fails."""
    known = {} if anew else STORE.read().get(key, {})
    return STORE.write(key, known | {result.name: result for result in results})


def latest_results() -> dict[str, KernelResult]:
    """The last entry of this machine, for any model, by operation; empty if there is none."""
    current = machine_key()
    entries = [e for key, e in STORE.read().items() if key.startswith(current)]
    return entries[-1] if entries else {}


def apply_results(kernels: Kernels, results: Iterable[KernelResult]) -> Kernels:
    """Enable the kernels that are right and fast, and disable the others.

    A kernel that was timed at several sizes runs where it is faster. In exact mode slow kernels are
    enabled too, because stock MLX cannot replace them.
    """
    on = set()
    off = {}
    wrong = set()
    sizes = dict[str, frozenset[Any]]()
    smaller = set()
    for result in results:
        if result.smaller:
            smaller.add(result.name)
        fast = not result.reason or (result.reason == UNTIMED and result.won)
        if fast or (kernels.exact and result.right and result.reason != UNCHECKED):
            on.add(result.name)
            if result.sizes and not kernels.exact:
                sizes[result.name] = result.won
        else:
            off[result.name] = result.reason
            if not result.right:
                wrong.add(result.name)
    return replace(
        kernels,
        on=frozenset(on),
        off=off,
        wrong=frozenset(wrong),
        sizes=sizes,
        smaller=frozenset(smaller),
    )
