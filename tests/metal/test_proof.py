"""The proof of every kernel in the emulator: honest ones pass, broken ones are found and not used."""


import pytest

from dflash_mlx.kernels.proof import Verdict, prove
from dflash_mlx.kernels.shapes import GENERIC
from dflash_mlx.kernels.source import Launcher, MetalLauncher
from dflash_mlx.kernels.trials import TRIALS, Trial

from .emulator import emulated

TRIAL = {trial.name: trial for trial in TRIALS}


def verdict_on(trial: Trial, launcher: Launcher) -> Verdict:
    """What the proof makes of one operation, at the generic shapes."""
    with emulated(strict=False):
        (found,) = prove(launcher, GENERIC, trials=(trial,), budget=0.0)
    return found


@pytest.mark.parametrize("name", TRIAL)
def test_honest_kernels_are_right(name: str) -> None:
    found = verdict_on(TRIAL[name], MetalLauncher())
    assert found.right, found.reason
