"""Builds the kernels that a pair uses before anybody waits for its first answer.

MLX compiles a kernel's text when it is first launched, which takes a tenth of a second and more.
Kernels that were proven by an earlier program would be compiled one by one in its answers.
"""

from collections.abc import Iterable, Iterator, Sequence

import mlx.core as mx

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.progress import Progress, silent

from .cases import Case
from .shapes import Shapes
from .times import outputs
from .trials import TRIALS, Trial


def build(
    kernels: Kernels,
    shapes: Shapes,
    *,
    on_kernels: Progress = silent,
    trials: Sequence[Trial] = TRIALS,
) -> None:
    """Launch every kernel that is used at these shapes; nobody looks at what it gives.

    `on_kernels` is called with the numbers of operations that are ready, and of all.
    """
    used = [trial for trial in trials if kernels.has(trial.op) and trial.fitting(shapes)]
    for done, trial in enumerate(used):
        on_kernels(done, len(used))
        for arrays in launches(kernels, trial, shapes):
            mx.eval(arrays)
    on_kernels(len(used), len(used))
    mx.clear_cache()


def launches(kernels: Kernels, trial: Trial, shapes: Shapes) -> Iterator[list[mx.array]]:
    """What an operation's kernels give for the cases at which they are used; not computed."""
    cases: Iterable[Case] = trial.fitting(shapes)
    if trial.sizes is not None and not kernels.exact:
        cases = (one.case for one in trial.sizes(shapes))
    for case in cases:
        if kernels.launches(trial.op, *case):
            yield outputs(kernels(trial.op, *case))
