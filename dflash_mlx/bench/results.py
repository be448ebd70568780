"""The results of a run, in a JSONL file that a later run may continue.

The first line holds the facts of the run, each other line one measurement. A run with other facts
is refused, and so is a second writer. An incomplete last line is dropped.
"""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.device import device_info
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.line_file import LineFile
from dflash_mlx.installation import versions
from dflash_mlx.models.precision import bits_of
from dflash_mlx.pair import Pair

from .questions import Question
from .records import Key, Record, adapter, record_of
from .runner import Curve
from .schedule import Schedule

FORMAT = 1
FILE_START = b'{"kind": "run"'
Facts = dict[str, Any]  # JSON values


class Results:
    def __init__(self, facts: Facts, path: Path | None = None):
        """Read the file and lock it until `close`.

        Raises DFlashError if the file has other facts, is locked, or cannot be used.
        """
        self.facts = {"format": FORMAT, **json.loads(json.dumps(facts))}
        self.path = path
        self.records: dict[Key, Record] = {}
        self.curve: Curve | None = None
        self._file: LineFile | None = None
        if path is not None:
            self._file = LineFile(path, "benchmark")
            try:
                self._resume(self._file, path)
            except BaseException:
                self.close()
                raise

    def _resume(self, file: LineFile, path: Path) -> None:
        if not file.lines and not FILE_START.startswith(file.rest[: len(FILE_START)]):
            raise not_results(path, 1)
        for number, line in enumerate(file.lines, 1):
            try:
                data = json.loads(line)
                kind = data.pop("kind")
                if (kind == "run") != (number == 1):
                    raise not_results(path, number)
                if kind == "answer":
                    record = record_of(data)
                    self.records[record.key] = record
                elif kind == "costs":
                    self.curve = adapter(Curve).validate_json(json.dumps(data), strict=True)
                elif kind != "run":
                    raise not_results(path, number)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise not_results(path, number) from None
            if number == 1 and (change := first_difference(data, self.facts)):
                raise DFlashError(
                    f"'{path}' holds results of another run: {change}.",
                    hint="repeat that run's settings to continue it, or give --out another file",
                )
        file.cut()
        if not file.lines:
            self._append("run", self.facts)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep(self, record: Record) -> None:
        """Add a record, and write it at once."""
        self.records[record.key] = record
        self._append("answer", record.data())

    def keep_curve(self, curve: Curve) -> None:
        """Set the costs of a pass by width, and write them at once."""
        self.curve = curve
        self._append("costs", asdict(curve))

    def of(self, schedule: Schedule, questions: Sequence[Question]) -> list[Record]:
        """The available records of a schedule, in its order."""
        keys = (key for key, _, _ in schedule.keys(questions))
        return [self.records[key] for key in keys if key in self.records]

    def _append(self, kind: str, data: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.append({"kind": kind, **data})


def first_difference(file_facts: Facts, run_facts: Facts, prefix: str = "") -> str | None:
    """The first difference between the facts of a file and of this run, as text; None if equal."""
    for name in dict.fromkeys([*file_facts, *run_facts]):
        old = file_facts.get(name)
        new = run_facts.get(name)
        label = f"{prefix} {name}".strip().replace("_", " ")
        if isinstance(old, dict) and isinstance(new, dict):
            if (inner := first_difference(old, new, label)) is not None:
                return inner
        elif old != new:
            old, new = ("not set" if value is None else value for value in (old, new))
            return f"its {label} is {old}, now it is {new}"
    return None


def not_results(path: Path, number: int) -> DFlashError:
    return DFlashError(
        f"line {number} of '{path}' is not a benchmark result.", hint="give --out another file"
    )


# The facts of a run: its models, settings, machine and versions

ORDER = ("modes", "temperatures", "repeats")  # settings that may differ in a run that goes on
VALUES_PER_TENSOR = 64  # in the hash of the weights


def facts_of(pair: Pair, schedule: Schedule) -> dict[str, Any]:
    """The facts of a run; measurements are comparable only if these are equal."""
    drafter = pair.drafter
    kernels = pair.target.kernels
    settings = asdict(schedule)
    return {
        "pair": {
            "target": pair.target_name,
            "drafter": pair.draft_label,
            "draft_bits": None if drafter is None else bits_of(drafter.model) or None,
            "target_weights": weights_hash(pair.target.model),
            "drafter_weights": None if drafter is None else weights_hash(drafter.model),
            "type": str(pair.target.config.get("model_type")),
            "dtype": weights_dtype(pair.target.model),
            "block_size": pair.block_size if pair.drafts else None,
            "kv_cache": pair.target.kv_summary or None,
            "exact": kernels.exact,
            "kernels": None if kernels.launcher is None else sorted(kernels.on or ()),
        },
        "settings": {name: value for name, value in settings.items() if name not in ORDER},
        "machine": machine_facts(),
        "versions": {**versions(), "python": platform.python_version()},
    }


def machine_facts() -> dict[str, Any]:
    """The processor, memory in bytes, system, and MLX's device and BLAS."""
    return {
        "chip": str(device_info().get("device_name", "")) or platform.machine(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "device": mx.default_device().type.name,
        "blas": Path(use_openblas() or "as MLX is built").name,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS"),
    }


def weights_dtype(model: nn.Module) -> str:
    """The dtype of most weights, or "N-bit" for a quantised model."""
    quantised = next((m for m in model.modules() if hasattr(m, "bits")), None)
    if quantised is not None:
        return f"{quantised.bits}-bit"
    sizes: dict[str, int] = {}
    for _, value in tree_flatten(model.parameters()):
        name = str(value.dtype).removeprefix("mlx.core.")  # type: ignore[union-attr]
        sizes[name] = sizes.get(name, 0) + value.size  # type: ignore[union-attr]
    return max(sizes, key=lambda name: sizes[name])


def weights_hash(model: nn.Module) -> str:
    """A short hash of the names, shapes, dtypes and first values of all weights.

    Modules that wrap another one as `plain` do not change the hash.
    """
    digest = hashlib.sha256()
    weights = dict[str, Any]()
    for name, value in tree_flatten(model.parameters()):
        weights[".".join(part for part in name.split(".") if part != "plain")] = value
    for name, value in sorted(weights.items()):
        assert isinstance(value, mx.array)
        digest.update(f"{name} {value.shape} {value.dtype}".encode())
        digest.update(np.array(value.reshape(-1)[:VALUES_PER_TENSOR].astype(mx.float32)).tobytes())
    return digest.hexdigest()[:12]
