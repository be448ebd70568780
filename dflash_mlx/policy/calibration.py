"""How likely drafts are kept, learned from those that were and were not.

A drafter says how sure it is of each slot; how far that is true differs from drafter to drafter and
from text to text. A set of calibrations is held, each with the probability that it is the right
one: a calibration turns the drafter's log-odds x of slot j into scale * x + shift - fade * j. The
probabilities are multiplied by how well each foretold what happened (Bayes), and leak back towards
where they began, so that what was long ago is forgotten. Plain numbers; knows no models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product
from operator import mul
from typing import Protocol

import numpy as np

SCALES = (0.0, 0.35, 0.7, 1.0, 1.4)
SHIFTS = (-6.0, -4.0, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 3.0)
FADES = (0.0, 0.06, 0.15)
SLOTS = 16  # later slots fade no further
LEAST, MOST, STEP = -8.0, 9.0, 0.25  # log-odds that are told apart
BLIND = 0.1  # prior probability that a drafter's confidence says nothing


@cache
def calibrations() -> tuple[np.ndarray, np.ndarray]:
    """Their prior probabilities [C], and what they make of every slot and log-odds [S, L, C]."""
    scale, shift, fade = np.array(list(product(SCALES, SHIFTS, FADES))).T
    trusting = np.exp(-0.5 * (((scale - 1) / 0.3) ** 2 + (shift / 0.8) ** 2 + (fade / 0.06) ** 2))
    blind = (scale == 0) * np.exp(-0.5 * (fade / 0.03) ** 2)
    prior = (1 - BLIND) * trusting / trusting.sum() + BLIND * blind / blind.sum()
    odds = np.arange(LEAST, MOST + STEP / 2, STEP)[:, None]
    slots = np.arange(SLOTS)[:, None, None]
    chances = 1 / (1 + np.exp(fade * slots - scale * odds - shift))
    prior.setflags(write=False)
    chances.setflags(write=False)
    return prior, chances


def survivals(confidence: np.ndarray) -> np.ndarray:
    """Chances [..., γ, C] that slots are kept with all before them, as each calibration sees it.

    confidence: [..., γ], what the drafter says of each slot if those before are kept; after a 0
    there are no drafts.
    """
    sure = np.clip(confidence, 1e-6, 1 - 1e-6)
    odds = np.clip(np.log(sure / (1 - sure)), LEAST, MOST)
    bins = np.rint((odds - LEAST) / STEP).astype(np.intp)
    slots = np.minimum(np.arange(confidence.shape[-1]), SLOTS - 1)
    chances = calibrations()[1][slots, bins]
    if not confidence.all():
        chances = chances * (confidence > 0)[..., None]
    return np.cumprod(chances, axis=-2)


class Calibration:
    """What is believed about one drafter, for chains or for trees.

    `weights` [C] are the probabilities of the calibrations now. What they were in the long run
    is where they leak to, together with what was believed at first.
    """

    LEAK = 0.005  # each round
    FRESH = 0.15  # each conversation
    SLOW = 0.02  # of the long run, each round
    FIRST = 0.1  # what the first belief keeps of it

    def __init__(self) -> None:
        self.weights, self._usual = calibrations()[0].copy(), calibrations()[0].copy()

    def learn(
        self, survival: np.ndarray, accepted: int, offered: int, *, cut: bool, share: float = 1.0
    ) -> None:
        """Of `offered` drafts with survivals [γ, C] the first `accepted` were kept.

        `cut`: the next one was not judged, because the answer ended. With a `share` below 1 it
        counts for less: what is learned of a chain holds for trees only in part.
        """
        kept = survival[accepted - 1] if accepted else 1.0
        lost = survival[accepted] if accepted < offered and not cut else 0.0
        self.weights *= np.maximum(kept - lost, 1e-9) ** share
        self.weights /= self.weights.sum()
        self._usual += self.SLOW * (self.weights - self._usual)
        self._leak(self.LEAK)

    def begin(self) -> None:
        """A new conversation: the next text may be of another kind."""
        self._leak(self.FRESH)

    def _leak(self, share: float) -> None:
        usual = self._usual + self.FIRST * (calibrations()[0] - self._usual)
        self.weights += share * (usual - self.weights)


class Paths(Protocol):
    """The nodes of a draft tree in the order in which a larger budget takes them: the
    log-probability of the path from the anchor to each, and its length (a `Tree` is one).
    """

    @property
    def logs(self) -> Sequence[float]: ...

    @property
    def depths(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Confidence:
    """What a drafter says of the block that it has just drafted, on the host.

    `chain`: the probability it gives each slot's draft [γ]. `grow` builds the draft tree, with as
    many nodes as any plan may want; it is called at most once, and only if a tree may pay.
    """

    chain: tuple[float, ...]
    grow: Callable[[], Paths] | None = None


def steps(paths: Paths, budgets: Sequence[int]) -> np.ndarray:
    """How likely trees of these many nodes go on from each depth to the next, [budgets, depths].

    The probability of all paths of a depth over that of the depth before; 0 where a tree ends. By
    proposition 1 of the paper the running products of a row sum to the tree's expected match.
    """
    depths, chances = np.array(paths.depths, dtype=np.intp), np.exp(np.array(paths.logs))
    mass = np.zeros((len(budgets), int(depths.max(initial=0)) + 1))
    mass[:, 0] = 1.0
    for row, budget in enumerate(budgets):
        np.add.at(mass[row], depths[:budget], chances[:budget])
    return np.minimum(mass[:, 1:] / np.maximum(mass[:, :-1], 1e-12), 1.0)


class Positions:
    """Acceptance by position alone: what is left where confidence is not read.

    Counts of drafts that were judged and kept in slot 1, 2, ..., older rounds counting less.
    """

    MEMORY = 0.97
    BELIEF = (1.0, 0.82)  # counts and share that a slot begins with

    def __init__(self) -> None:
        # Plain lists: arrays of so few numbers cost a round several times as much.
        self._judged: list[float] = []
        self._kept: list[float] = []

    def rates(self, slots: int) -> list[float]:
        """Share of slot j's drafts that are kept if those before are, for so many slots."""
        self._grow(slots)
        count, share = self.BELIEF
        pairs = zip(self._kept[:slots], self._judged[:slots], strict=True)
        return [(kept + count * share) / (judged + count) for kept, judged in pairs]

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of slot j's drafts that are kept, those before included."""
        return tuple(accumulate(self.rates(len(self._judged)), mul))

    def learn(self, accepted: int, offered: int, *, cut: bool) -> None:
        """As `Calibration.learn`."""
        self._grow(offered)
        known = accepted + (accepted < offered and not cut)
        old = self.MEMORY
        self._judged = [old * n + (slot < known) for slot, n in enumerate(self._judged)]
        self._kept = [old * n + (slot < accepted) for slot, n in enumerate(self._kept)]

    def begin(self) -> None:
        """A new conversation: what was counted so far is a hint."""
        shrink = [min(1.0, 6.0 / max(count, 1e-9)) for count in self._judged]
        self._judged = [count * part for count, part in zip(self._judged, shrink, strict=True)]
        self._kept = [count * part for count, part in zip(self._kept, shrink, strict=True)]

    def _grow(self, slots: int) -> None:
        missing = [0.0] * (slots - len(self._judged))
        self._judged += missing
        self._kept += missing
