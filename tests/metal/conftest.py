"""Every test of this folder runs Metal kernels in the emulator."""

import os
from pathlib import Path

import pytest

from .build import missing

# CI sets it: there a machine that cannot emulate is a failure, not a reason to skip.
NEEDED = bool(os.environ.get("DFLASH_NEED_EMULATOR"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.emulated)
    if ours and (why := missing()):
        if NEEDED:
            raise pytest.UsageError(why)
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=why))
