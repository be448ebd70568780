"""Fits the factors of a forecast to measured times: least squares of log errors, outliers less."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from .forecast import Chip, Factors, chips, round_of, seconds, step_of
from .tally import Tally

STEP, ROUND, PRODUCT = "step", "round", "product"
# What each factor can be. Small kernels may run side by side; nothing exceeds a chip's peak.
RANGES = {
    "early": (0.5, 0.95),
    "share": (0.5, 0.95),
    "gap": (0.05, 1.5),
    "vector": (0.05, 1.0),
    "matrix": (0.05, 1.0),
    "wait": (300.0, 300.0),  # an estimate: too few public rounds of MLX's own kernels show it
    "slow": (50.0, 100_000.0),
}
STEPS, NUDGE, DAMPED = 60, 1e-4, 1e-4
FAR = 0.1  # log errors from which a point counts by its error, not by its square
Numbers = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Point:
    """Measured seconds of a decode step, of a round (its draft and its verify) or of a product.

    `slow`: by Aryagm's engine or one derived from it, whose rounds wait longer. A point that is not
    `used` takes no part in a fit.
    """

    chip: str
    kind: str
    measured: float
    tallies: tuple[Tally, ...]
    slow: bool = False
    used: bool = True


def forecast_of(point: Point, known: Mapping[str, Chip], factors: Factors) -> float:
    """The forecast seconds of a point."""
    chip = known[point.chip]
    if point.kind == STEP:
        return step_of(point.tallies[0], chip)
    if point.kind == ROUND:
        waiting = replace(chip, sync=1e-6 * factors.slow) if point.slow else chip
        draft, verify = point.tallies
        return round_of(draft, verify, waiting)
    return seconds(point.tallies[0], chip)


def log_errors(points: Iterable[Point], factors: Factors) -> Numbers:
    """The logarithm of forecast / measured of each point."""
    known = {chip.name: chip for chip in chips(factors)}
    ratios = [forecast_of(one, known, factors) / one.measured for one in points]
    return np.log(np.array(ratios))


def softened(errors: Numbers) -> Numbers:
    """Errors whose squares grow only linearly beyond FAR, so that no outlier rules a fit."""
    grown = np.sqrt(1 + (errors / FAR) ** 2) - 1
    return np.sign(errors) * FAR * np.sqrt(2 * grown)


def fit(points: Sequence[Point], start: Factors) -> Factors:
    """The factors within RANGES that make the squares of the used points' softened errors least."""
    used = [one for one in points if one.used]
    names = [field.name for field in fields(Factors)]
    low, high = (np.log([RANGES[name][end] for name in names]) for end in (0, 1))

    def errors(at: Numbers) -> Numbers:
        return softened(log_errors(used, Factors(*map(float, np.exp(at)))))

    at = np.clip(np.log(astuple(start)), low, high)
    for _ in range(STEPS):
        found = errors(at)
        nudges = NUDGE * np.eye(len(at))
        slopes = np.stack([(errors(at + one) - found) / NUDGE for one in nudges], axis=1)
        damped = slopes.T @ slopes + DAMPED * np.eye(len(at))
        step = np.linalg.solve(damped, -slopes.T @ found)
        for share in (1.0, 0.5, 0.25, 0.1, 0.02):
            there = np.clip(at + share * step, low, high)
            if np.sum(errors(there) ** 2) < np.sum(found**2):
                at = there
                break
        else:
            break
    return Factors(*map(float, np.exp(at)))
