"""The acceptance length τ of a drafter on held-out answers, and a picture of its course."""

import json
from itertools import accumulate
from pathlib import Path

from dflash_mlx.drafter.drafter import Drafter

from .batches import Sequence
from .taps import Taps, stacked
from .tau import Acceptance, merge_counts, replay_answers

MAX_EVAL_TOKENS = 8192  # padded tokens of one evaluation batch


def evaluate(drafter: Drafter, taps: Taps, sequences: list[Sequence]) -> Acceptance | None:
    """The counts over all held-out answers; None if there are none."""
    lengths = [len(s.tokens) for s in sequences]
    numbers = sorted(range(len(lengths)), key=lengths.__getitem__)
    parts = []
    while numbers:
        longest = lengths[numbers[-1]]
        part = numbers[-max(1, MAX_EVAL_TOKENS // longest) :]
        numbers = numbers[: -len(part)]
        held_out = [sequences[n] for n in part]
        parts.append(replay_answers(drafter, stacked(taps.rows(part), longest), held_out))
    return merge_counts(parts) if parts else None


def can_draw() -> bool:
    """Whether matplotlib is installed."""
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
    course, positions = figure.subplots(1, 2)
    course.plot([seen[m["step"]] for m in measured], [m["tau"] for m in measured], "o-", ms=3)
    course.set_xlabel("training tokens seen")
    course.set_ylabel("τ on held-out prompts")
    last = measured[-1]
    shares = [100 * n / max(1, last["verifies"]) for n in last["accepted_by_position"]]
    positions.plot(range(1, len(shares) + 1), shares, "o-", ms=3)
    positions.set_xlabel(f"draft's position in the block, step {last['step']:,}")
    positions.set_ylabel("drafts kept, % of verifies")
    positions.set_ylim(0, 103)
    for panel in (course, positions):
        panel.grid(color="#e4e4e4")
    figure.savefig(file)
