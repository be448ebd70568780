"""The acceptance length τ of a drafter on held-out answers, without target passes; and its plot."""

import json
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import mlx.core as mx
import numpy as np

from .data import Text, TrainingSequence, groups, padded
from .step import Student
from .taps import TapStore, stacked

MAX_EVAL_TOKENS = 8192  # padded tokens of one evaluation batch


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over all verifies, without tokens after the end of an answer."""

    committed: int
    verifies: int
    accepted_by_position: tuple[int, ...]

    @property
    def tau(self) -> float:
        """Mean tokens committed per verify, bonus included; 0.0 without a verify."""
        return self.committed / self.verifies if self.verifies else 0.0


def replay_answers(
    student: Student, taps: mx.array, sequences: list[TrainingSequence]
) -> Acceptance:
    """Draft the answers of n sequences block by block; taps [n, S, K * Ht], padded."""
    width = student.drafter.block_size - 1
    lengths = np.array([len(s.tokens) for s in sequences])
    tokens = np.pad(padded([s.tokens for s in sequences]), ((0, 0), (0, width)))
    at = np.array([s.answer for s in sequences])
    text = Text(taps.astype(mx.float32), mx.array(tokens), mx.array(lengths))
    context = student.context(text)
    mx.eval(context)
    committed = verifies = 0
    by_position = np.zeros(width, dtype=int)
    while (live := np.flatnonzero(at < lengths - 1)).size:
        anchors = at[live]
        rows = mx.array(live)
        part = [(k[rows], v[rows]) for k, v in context]
        drafts = np.array(student.drafts(part, text.rows(rows), mx.array(anchors)[:, None])[:, 0])
        right = tokens[live[:, None], anchors[:, None] + np.arange(1, width + 1)]
        left = lengths[live] - 1 - anchors
        agree = (drafts == right) & (np.arange(width) < left[:, None])
        accepted = np.cumprod(agree, axis=1)
        by_position += accepted.sum(axis=0)
        kept = np.minimum(accepted.sum(axis=1) + 1, left)
        committed += int(kept.sum())
        verifies += live.size
        at[live] += kept
    return Acceptance(committed, verifies, tuple(int(n) for n in by_position))


def evaluate(
    student: Student, taps: TapStore, sequences: list[TrainingSequence]
) -> Acceptance | None:
    """The counts over all held-out answers; None if there are none."""
    if not sequences:
        return None
    lengths = [len(s.tokens) for s in sequences]
    parts = []
    for numbers in groups(lengths, MAX_EVAL_TOKENS):
        part = [sequences[n] for n in numbers]
        parts.append(replay_answers(student, stacked(taps.rows(part), lengths[numbers[0]]), part))
    positions = zip(*(part.accepted_by_position for part in parts), strict=True)
    return Acceptance(
        sum(part.committed for part in parts),
        sum(part.verifies for part in parts),
        tuple(map(sum, positions)),
    )


def can_draw() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw_tau(log: Path, file: Path) -> None:
    """Draw τ by training tokens seen, and drafts kept by position, of the lines of a run's log."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    seen = dict(
        zip((s["step"] for s in steps), accumulate(s["tokens"] for s in steps), strict=True)
    )
    measured = [line for line in lines if "tau" in line and line["step"] in seen]
    if not measured:
        return
    figure = Figure(figsize=(8.0, 3.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    by_tokens, positions = figure.subplots(1, 2)
    by_tokens.plot([seen[m["step"]] for m in measured], [m["tau"] for m in measured], "o-", ms=3)
    by_tokens.set_xlabel("training tokens seen")
    by_tokens.set_ylabel("τ on held-out prompts")
    last = measured[-1]
    shares = [100 * n / max(1, last["verifies"]) for n in last["accepted_by_position"]]
    positions.plot(range(1, len(shares) + 1), shares, "o-", ms=3)
    positions.set_xlabel(f"draft's position in the block, step {last['step']:,}")
    positions.set_ylabel("drafts kept, % of verifies")
    positions.set_ylim(0, 103)
    for panel in (by_tokens, positions):
        panel.grid(color="#e4e4e4")
    figure.savefig(file)
