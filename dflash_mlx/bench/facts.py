"""The facts of a benchmark run: its models, settings, machine and versions."""

import hashlib
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.device import device_info
from dflash_mlx.installation import versions
from dflash_mlx.models.precision import bits_of
from dflash_mlx.pair import Pair

from .schedule import Schedule

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
    weights = [(name.replace(".plain.", "."), w) for name, w in tree_flatten(model.parameters())]
    for name, value in sorted(weights, key=lambda item: item[0]):
        assert isinstance(value, mx.array)
        digest.update(f"{name} {value.shape} {value.dtype}".encode())
        digest.update(np.array(value.reshape(-1)[:VALUES_PER_TENSOR].astype(mx.float32)).tobytes())
    return digest.hexdigest()[:12]
