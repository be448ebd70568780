"""A run of a schedule under a progress bar, which Ctrl-C stops."""

from typing import TYPE_CHECKING

from ..terminal.interrupt import Interrupt
from ..terminal.output import Output
from .progress import BenchProgress

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.bench import Question, Results, Schedule


def run_schedule(
    pair: "Pair",
    schedule: "Schedule",
    questions: list["Question"],
    results: "Results",
    out: Output,
    *,
    costs: bool = True,
) -> bool:
    """Answer what is not answered yet, then time passes by width; False after Ctrl-C."""
    from dflash_mlx import bench as engine

    total = len(schedule.keys(questions))
    with Interrupt() as interrupt, BenchProgress(out, total) as progress:
        try:
            progress.show(len(results.of(schedule, questions)))
            for record in engine.run(pair, questions, schedule, results.records, interrupt.check):
                results.keep(record)
                progress.show(len(results.of(schedule, questions)), record)
            if costs and results.curve is None:
                depths = [turn.prompt_tokens for r in results.records.values() for turn in r.turns]
                depth = sorted(depths)[len(depths) // 2]
                results.keep_curve(engine.measure(pair, depth, interrupt.check))
        except KeyboardInterrupt:
            return False
    return True
