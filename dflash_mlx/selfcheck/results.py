"""The results of the self-check, and the file that keeps them: one check per machine."""

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from statistics import mean
from typing import Any, NamedTuple

from dflash_mlx.device import device_info
from dflash_mlx.files.folder import is_sidecar
from dflash_mlx.files.measurements import MeasurementStore, fingerprint
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.shapes import Shapes

UNUSED = "this model does not use it"
UNCHECKED = "not checked yet"
UNTIMED = "not timed yet"
NARROW = "all matrices are too narrow for it"
STARTED = "its last check did not end"


class Timed(NamedTuple):
    """A kernel at one size (`Op.size`): seconds per call, and their `ratio` to those without it."""

    size: tuple[int | str, ...] | None
    seconds: float
    ratio: float
    won: bool


@dataclass(frozen=True, slots=True)
class KernelResult:
    """The result of one operation's kernel.

    right: False if the kernel raises, cannot be compared, or its outputs are wrong. error: the
    largest difference of an output from the reference's, divided by the larger of 1 and the
    absolute value of the reference; None if integers differ or nothing was compared. reason: why
    the kernel is not used; empty if it is used. sizes: it is used where it won, also while others
    are not timed yet. smaller: whether the chip refuses its largest threadgroups: `Op.smaller`
    launches it.
    """

    name: str
    right: bool
    error: float | None = None
    reason: str = ""
    sizes: tuple[Timed, ...] = ()
    smaller: bool = False

    @property
    def final(self) -> bool:
        """Whether the check is complete: compared, and timed if needed."""
        return self.reason not in (UNCHECKED, UNTIMED)

    @property
    def won(self) -> frozenset[Any]:
        return frozenset(timed.size for timed in self.sizes if timed.won)

    @property
    def seconds(self) -> float | None:
        return mean(timed.seconds for timed in self.sizes) if self.sizes else None

    @property
    def ratio(self) -> float | None:
        return mean(timed.ratio for timed in self.sizes) if self.sizes else None


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
    sizes = tuple(Timed(size and tuple(size), *rest) for size, *rest in parts.pop("sizes"))
    result = KernelResult(**parts, sizes=sizes)
    numbers = [result.error or 0.0, *(number for t in sizes for number in (t.seconds, t.ratio))]
    flags = [result.right, result.smaller, *(timed.won for timed in sizes)]
    if (
        result.name != name
        or not isinstance(result.reason, str)
        or not (result.right or result.reason)
        or not all(isinstance(flag, bool) for flag in flags)
        or not all(isinstance(number, int | float) for number in numbers)
        or not isinstance(hash(sizes), int)
    ):
        raise ValueError("this is no result")
    return result


STORE = MeasurementStore(
    "kernels.json",
    "verdicts",
    "kernels",
    format=5,
    limit=16,
    parse=lambda entry: {name: from_json(name, parts) for name, parts in entry.items()},
    dump=lambda results: {name: asdict(result) for name, result in results.items()},
)


def latest_results() -> dict[str, KernelResult]:
    """The last entry of this machine, for any model, by operation; empty if there is none."""
    current = machine_key()
    entries = [e for key, e in STORE.read().items() if key.startswith(current)]
    return entries[-1] if entries else {}


def apply_results(kernels: Kernels, results: Iterable[KernelResult]) -> Kernels:
    """Enable the kernels that are right and fast, at the sizes where they won.

    In exact mode slow kernels are enabled too, because stock MLX cannot replace them.
    """
    results = list(results)
    able = {
        result.name: result
        for result in results
        if not result.reason
        or (result.reason == UNTIMED and result.won)
        or (kernels.exact and result.right and result.reason != UNCHECKED)
    }
    return replace(
        kernels,
        on=frozenset(able),
        off={result.name: result.reason for result in results if result.name not in able},
        wrong=frozenset(result.name for result in results if not result.right),
        sizes={} if kernels.exact else {name: able[name].won for name in able if able[name].sizes},
        smaller=frozenset(result.name for result in results if result.smaller),
    )
