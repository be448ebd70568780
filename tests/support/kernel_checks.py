"""Shapes of all operations at once, and the comparisons of one kernel."""

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.shapes import (
    AttentionShape,
    ExpertShape,
    GatedDeltaShape,
    LinearShape,
    SelectorShape,
    Shapes,
)
from dflash_mlx.kernels.source import Launcher
from dflash_mlx.selfcheck.check import KernelCheck
from dflash_mlx.selfcheck.results import UNCHECKED, KernelResult
from dflash_mlx.selfcheck.trials import Trial

# In sizes with few common factors.
GENERIC = Shapes(
    vocab=4103,
    rows=7,
    dtype="bfloat16",
    attention=(AttentionShape(6, 2, 64, 9, sinks=True), AttentionShape(2, 1, 128)),
    delta=GatedDeltaShape(2, 4, 64, 33, window=3, channels=388),
    selector=SelectorShape(13, 70, "bfloat16"),
    products=tuple(
        (shape, 1)
        for shape in (
            LinearShape(70, 384, 0, 0, "", "bfloat16"),
            *(
                LinearShape(70, 384, bits, 64, "affine", "bfloat16", bits == 8)
                for bits in (5, 6, 8)
            ),
            LinearShape(70, 384, 4, 32, "mxfp4", "uint8", biased=True),
            LinearShape(512, 64, 4, 64, "affine", "bfloat16"),  # wide enough for padded rows
            LinearShape(70, 384, 4, 64, "affine", "bfloat16"),
        )
    ),
    experts=(
        ExpertShape(
            5,
            3,
            LinearShape(64, 384, 4, 64, "affine", "float32"),
            LinearShape(64, 384, 4, 64, "affine", "float32", biased=True),
            LinearShape(70, 64, 4, 32, "mxfp4", "uint8", biased=True),
        ),
    ),
    context=300,
    architecture="applegpu_g16g",
)


def compared(launcher: Launcher, trial: Trial, shapes: Shapes = GENERIC) -> KernelResult:
    """The result of an operation's kernel in all cases, before it is timed."""
    kernels = Kernels(launcher, on=frozenset())
    check = KernelCheck(kernels, shapes, anew=True, trials=[trial])
    while check.results[trial.name].reason == UNCHECKED:
        check.step()
    return check.results[trial.name]
