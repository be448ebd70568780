"""`dflash bench --forecast CHIP`: what pairs would decode on a Mac that is not at hand.

Of the pair that was named, or of the published ones, whose weights are not needed.
"""

import json as jsonlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from dflash_mlx.errors import UsageError

from ..loading import find_pair
from ..options import ModelOptions
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from .report import ReportPrinter

if TYPE_CHECKING:
    from dflash_mlx.ledger.forecast import Forecast
    from dflash_mlx.ledger.published import Published

CONTEXTS = (1024, 8192)
COLUMNS = (
    ("pair", "left"),
    ("context", "right"),
    ("plain tok/s", "right"),
    ("dflash tok/s", "right"),
    ("speedup", "right"),
    ("rows", "right"),
)
CAVEAT = (
    "A forecast from counted bytes, products and dispatches with MLX's own kernels. Nobody "
    "measured it, and parts of what it knows of chips are estimates (dflash_mlx/ledger/chips.toml)."
)


def show_forecast(
    chip_name: str, tokens: float, model_options: ModelOptions, out: Output, *, json: bool
) -> None:
    """Print the table, or one JSON object; UsageError for an unknown chip or no drafter."""
    from dflash_mlx.drafter.bits import chosen_bits
    from dflash_mlx.kernels.dispatch import Kernels
    from dflash_mlx.ledger.forecast import chip_named, forecast
    from dflash_mlx.ledger.passes import TracedPair

    chip = chip_named(chip_name)
    found: list[tuple[str, Forecast]] = []
    for published in pairs(model_options, out):
        bits = chosen_bits(model_options.draft_bits, target_quantised=published.mode != "none")
        with Spinner(out, f"counting {published.name}"):
            pair = TracedPair(published, Kernels(), bits)
            found += [(published.name, one) for one in forecast(pair, chip, CONTEXTS, tokens)]
    if json:
        rows = [{"pair": name, **asdict(one)} for name, one in found]
        document = {"forecast": chip.name, "measured": False, "tau": tokens, "rows": rows}
        out.write(jsonlib.dumps({**document, "caveat": CAVEAT}) + "\n")
        return
    printer = ReportPrinter(out)
    printer.line(f"forecast for {chip.name} · {tokens:g} tokens a whole block", "bold")
    printer.line("")
    printer.table(COLUMNS, [cells(name, one) for name, one in found])
    printer.line("")
    printer.line(CAVEAT, "dim")


def cells(name: str, one: "Forecast") -> tuple[str, ...]:
    """A row of the table."""
    rates = f"{one.plain:.0f}", f"{one.drafted:.0f}", f"{one.drafted / one.plain:.2f}×"
    return (name, f"{one.depth:,}", *rates, str(one.rows))


def pairs(model_options: ModelOptions, out: Output) -> Iterator["Published"]:
    """The pair that was named, or the published ones."""
    from dflash_mlx.ledger.published import PAIRS, of_folders

    if model_options.no_draft:
        raise UsageError("a forecast is of a target and a drafter.", hint="leave --no-draft out")
    if model_options.model is None and model_options.draft is None:
        yield from PAIRS
        return
    label, target, draft = find_pair(model_options, out)
    assert draft is not None
    yield of_folders(label, target, draft)
