"""Runs `dflash` as on an M2 with 16 GB and without any model; a fake Hub has the offered pairs."""

from importlib import import_module
from pathlib import Path
from typing import Any

from golden_pair import GOLDEN

TARGET, DRAFT = "mlx-community/Qwen3.5-9B-4bit", "z-lab/Qwen3.5-9B-DFlash"
WORKING_SET = 11_800_000_000  # bytes


def repositories() -> dict[str, dict[str, bytes]]:
    """The first pair that is offered: a tiny one under its names."""
    return {name: files(GOLDEN / part) for name, part in ((TARGET, "target"), (DRAFT, "draft"))}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pretend(patch: Any) -> None:
    """Make this process believe in the Mac; `patch` is a MonkeyPatch."""
    device = import_module("dflash_mlx.device")
    info = {**device.device_info(), "device_name": "Apple M2"}
    patch.setattr(device, "device_info", lambda: info)
    patch.setattr("dflash_mlx.models.memory.working_set", lambda: WORKING_SET)
    patch.setattr("dflash_mlx.hub.download.free_disk", lambda: (Path(), 500_000_000_000))
    for module in ("loading", "first_model"):
        patch.setattr(f"dflash_mlx.cli.{module}.has_metal", lambda: True)


if __name__ == "__main__":
    import pytest

    from dflash_mlx.cpu.blas import use_openblas

    use_openblas()
    pretend(pytest.MonkeyPatch())
    import_module("dflash_mlx.cli.app").main()
