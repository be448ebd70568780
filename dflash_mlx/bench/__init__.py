"""Benchmark of the engine's modes: speed, acceptance and identity of answers on many prompts.

The modes run interleaved in one process.

    import dflash_mlx
    from dflash_mlx import bench
    pair = dflash_mlx.load()
    schedule = bench.Schedule(modes=bench.parse_modes("baseline,dflash"), temperatures=(0.0, 1.0))
    questions = bench.questions_of("bundled", limit=8)
    with bench.Results(bench.facts_of(pair, schedule), Path("results.jsonl")) as results:
        for record in bench.run(pair, questions, schedule, results.records):
            results.keep(record)
    rows = bench.summarise(results.of(schedule, questions))

Importing this package loads no model code; the names below load it when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dflash_mlx.cpu.blas import use_openblas

if TYPE_CHECKING:
    from .fitting import fitting_sources, missing_drafters
    from .plot import check_plotting, draw
    from .questions import Question, questions_of, read_questions, suite_names
    from .results import (
        Difference,
        Results,
        Row,
        Spread,
        facts_of,
        find_differences,
        summarise,
        with_gap,
    )
    from .runner import Curve, check, measure, run
    from .schedule import (
        Record,
        Schedule,
        Source,
        Variant,
        default_modes,
        parse_modes,
        parse_sources,
        parse_temperatures,
    )

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
    "check",
    "check_plotting",
    "default_modes",
    "draw",
    "facts_of",
    "find_differences",
    "fitting_sources",
    "measure",
    "missing_drafters",
    "parse_modes",
    "parse_sources",
    "parse_temperatures",
    "questions_of",
    "read_questions",
    "run",
    "suite_names",
    "summarise",
    "with_gap",
]
_MODULES = {
    "fitting": ("fitting_sources", "missing_drafters"),
    "plot": ("check_plotting", "draw"),
    "questions": ("Question", "questions_of", "read_questions", "suite_names"),
    "results": (
        "Difference",
        "Results",
        "Row",
        "Spread",
        "facts_of",
        "find_differences",
        "summarise",
        "with_gap",
    ),
    "runner": ("Curve", "check", "measure", "run"),
    "schedule": (
        "Record",
        "Schedule",
        "Source",
        "Variant",
        "default_modes",
        "parse_modes",
        "parse_sources",
        "parse_temperatures",
    ),
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name; on Linux OpenBLAS is loaded before MLX."""
    for module, names in _MODULES.items():
        if name in names:
            use_openblas()
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module 'dflash_mlx.bench' has no attribute '{name}'")
