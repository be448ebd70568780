"""Benchmark of the engine's modes: speed, acceptance and identity of answers on many prompts.

The modes run interleaved in one process.

    import dflash_mlx
    from dflash_mlx import bench
    pair = dflash_mlx.load()
    schedule = bench.Schedule(modes=bench.parse_modes("baseline,dflash"), temperatures=(0.0, 1.0))
    questions = bench.bundled_questions()[:8]
    with bench.Results(bench.facts_of(pair, schedule), Path("results.jsonl")) as results:
        for record in bench.run(pair, questions, schedule, results.records):
            results.keep(record)
    rows = bench.summarise(results.of(schedule, questions))
"""

from .questions import Question, bundled_questions, read_questions
from .records import Record
from .results import Results, facts_of
from .runner import Curve, check, measure, run
from .schedule import Schedule, Variant, parse_modes, parse_temperatures
from .sources import Source, fitting_sources, missing_drafters, parse_sources
from .summary import Difference, Row, Spread, find_differences, overall, summarise, with_gap

__all__ = [
    "Curve",
    "Difference",
    "Question",
    "Record",
    "Results",
    "Row",
    "Schedule",
    "Source",
    "Spread",
    "Variant",
    "bundled_questions",
    "check",
    "facts_of",
    "find_differences",
    "fitting_sources",
    "measure",
    "missing_drafters",
    "overall",
    "parse_modes",
    "parse_sources",
    "parse_temperatures",
    "read_questions",
    "run",
    "summarise",
    "with_gap",
]
