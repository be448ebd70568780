"""What a benchmark's numbers hold for: the pair, the settings, the machine, the versions.

Plain JSON values; two runs with the same facts may share a file. Knows no results.
"""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx import __version__
from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.pair import Pair

from .schedule import Schedule

CPUINFO = Path("/proc/cpuinfo")
VALUES = 64  # of each tensor, enough to tell two trainings apart


def facts_of(pair: Pair, schedule: Schedule, draft_bits: int | None = None) -> dict[str, Any]:
    """Everything that must be the same for two measurements to be compared."""
    drafter, kernels = pair.drafter, pair.target.kernels
    return {
        "pair": {
            "target": pair.target_name,
            "drafter": pair.draft_name,
            "draft_bits": draft_bits,
            "target_weights": digest(pair.target.model),
            "drafter_weights": None if drafter is None else digest(drafter.model),
            "type": str(pair.target.config.get("model_type")),
            "dtype": dtype_of(pair.target.model),
            "block_size": None if drafter is None else drafter.config.block_size,
            "exact": kernels.exact,
            "kernels": None if kernels.launcher is None else sorted(kernels.on or ()),
        },
        "settings": {
            "max_tokens": schedule.max_tokens,
            "seed": schedule.seed,
            "block_size": schedule.block_size,
            "accept": schedule.accept,
            "think": schedule.think,
            "effort": schedule.effort,
            "cooldown": schedule.cooldown,
        },
        "machine": machine(),
        "versions": {
            "dflash": __version__,
            "mlx": version("mlx"),
            "mlx_lm": version("mlx-lm"),
            "python": platform.python_version(),
        },
    }


def machine() -> dict[str, Any]:
    """The processor, its memory (bytes), the system, and what computes."""
    return {
        "chip": chip(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "device": mx.default_device().type.name,
        "blas": Path(use_openblas() or "as MLX is built").name,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS"),
    }


def chip() -> str:
    """The name that MLX knows the processor by."""
    return str(mx.device_info().get("device_name", "")) or platform.machine()


def dtype_of(model: nn.Module) -> str:
    """The type that most of the weights have; quantised ones with their bits."""
    quantised = next((m for m in model.modules() if hasattr(m, "bits")), None)
    if quantised is not None:
        return f"{quantised.bits}-bit"
    sizes: dict[str, int] = {}
    for _, value in tree_flatten(model.parameters()):
        name = str(value.dtype).removeprefix("mlx.core.")  # type: ignore[union-attr]
        sizes[name] = sizes.get(name, 0) + value.size  # type: ignore[union-attr]
    return max(sizes, key=lambda name: sizes[name])


def digest(model: nn.Module) -> str:
    """A short hash of the names, shapes, types and first values of all weights.

    Stand-ins for layers change no weights, only where they are.
    """
    found = hashlib.sha256()
    weights = [(name.replace(".plain.", "."), w) for name, w in tree_flatten(model.parameters())]
    for name, value in sorted(weights, key=lambda item: item[0]):
        assert isinstance(value, mx.array)
        found.update(f"{name} {value.shape} {value.dtype}".encode())
        found.update(np.array(value.reshape(-1)[:VALUES].astype(mx.float32)).tobytes())
    return found.hexdigest()[:12]
