"""What passes cost on Macs, counted from shapes alone. Nothing is downloaded; nobody measured it.

    .venv/bin/python examples/measure/ledger passes --pairs Qwen3-8B-4bit --chip M1
    .venv/bin/python examples/measure/ledger forecast "M4 Max" M1
    .venv/bin/python examples/measure/ledger forecast M1 --folders TARGET DRAFT --tau 4
    .venv/bin/python examples/measure/ledger errors

`passes` says what passes dispatch and move (traffic.py has the rules), `forecast` tokens per second
by chip, and `errors` how far forecasts are from what others measured. `guide` writes the tables of
examples/guide/forecast.md anew, `record` the costs of the simulated Macs of tests/policy, `prior`
the table that mode auto begins with.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a folder runs with itself in the path

import dflash_mlx  # noqa: F401  # before MLX, whose matrix products it makes fast

# isort: split
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from ledger import errors, forecast, prior, recorded
from ledger.chips import chip_named, chips
from ledger.passes import TracedPair
from ledger.published import PAIRS, of_folders
from ledger.traffic import costs, least

GUIDE = Path(__file__).parents[2] / "guide" / "forecast.md"
NAMES = [pair.name for pair in PAIRS]
WAYS = {"mlx-lm": Kernels(), "kernels off": Kernels(), "kernels on": Kernels(MetalLauncher())}
DEPTH, TAU = 1024, 5.0  # tokens of context, and tokens a whole block commits, unless told


def passes(asked: argparse.Namespace) -> None:
    """Print dispatches and bytes of passes: of mlx-lm, and of this package."""
    chip = chip_named(asked.chip)
    titles = ("read MB", "again MB", "written MB", "least MB", "x least")
    for pair in (pair for pair in PAIRS if pair.name in asked.pairs):
        print(f"\n{pair.name} on {chip.name}, after {asked.context:,} tokens")
        print(f"rows  {'by':<12}{'dispatches':>10}" + "".join(f"{title:>11}" for title in titles))
        traced = TracedPair(pair, Kernels())
        for rows in asked.rows:
            for by, kernels in WAYS.items():
                traced.target.kernels = kernels
                run = traced.stock_rows if by == "mlx-lm" else traced.verify
                graph = run(asked.context, rows)
                parts, must = costs(graph, chip.gpu), least(graph)
                dispatches = sum(part.dispatches for part in parts)
                read, again, written = (
                    sum(getattr(part, name) for part in parts)
                    for name in ("read", "again", "written")
                )
                sizes = "".join(f"{size / 1e6:>11,.1f}" for size in (read, again, written, must))
                times = (read + written) / must
                print(f"{rows:>4}  {by:<12}{dispatches:>10,}{sizes}{times:>11.2f}", flush=True)


def speeds(asked: argparse.Namespace) -> None:
    """Print plain and drafted speeds by chip and pair."""
    wanted = [chip_named(name) for name in asked.chips] or chips()
    pairs = list(PAIRS)
    if asked.folders:
        target, draft = asked.folders
        pairs = [of_folders(target.name, target, draft)]
    counted = forecast.counted(pairs, asked.tau)
    print(
        f"Forecast after {asked.context:,} tokens, {asked.tau:g} tokens a whole block: plain → "
        "drafted tokens per second (rows). Nobody measured it.\n"
    )
    for line in forecast.table(counted, wanted, asked.context, asked.tau):
        print(line)


def apart(asked: argparse.Namespace) -> None:
    """Print what others measured beside its forecast."""
    table = errors.Table(list(errors.counted(errors.load())))
    print("Forecasts beside what others measured. This project measured none of it.\n")
    for line in (*table.lines, "", *table.summary()):
        print(line)


def guide(asked: argparse.Namespace) -> None:
    """Write the guide's tables between `<!-- name -->` and `<!-- end -->`."""
    tables = {
        "speeds": forecast.table(forecast.counted(PAIRS, TAU), chips(), DEPTH, TAU),
        "errors": errors.Table(list(errors.counted(errors.load()))).summary(),
    }
    text = GUIDE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        body = "\n".join(lines) + "\n"
        text = between.sub(lambda found, body=body: found[1] + body + found[2], text)
    GUIDE.write_text(text, encoding="utf-8")


def record(asked: argparse.Namespace) -> None:
    """Count the costs of the simulated Macs again."""
    recorded.write(recorded.count())


def table_of_chips(asked: argparse.Namespace) -> None:
    """Write the table that mode auto begins with."""
    prior.write([*prior.counted(), *prior.measured(asked.folders)])


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=(run.__doc__ or "").rstrip("."))
        one.set_defaults(run=run)
        return one

    one = command("passes", passes)
    one.add_argument("--pairs", nargs="+", choices=NAMES, default=NAMES)
    one.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    one.add_argument("--context", type=int, default=DEPTH)
    one.add_argument("--chip", default="M4", help="whose kernels MLX takes (%(default)s)")
    one = command("forecast", speeds)
    one.add_argument("chips", nargs="*", metavar="CHIP", help="like M1, 'M4 Max' or M5Pro")
    one.add_argument("--folders", nargs=2, type=Path, metavar=("TARGET", "DRAFT"))
    one.add_argument("--context", type=int, default=DEPTH)
    one.add_argument("--tau", type=float, default=TAU, help="tokens a whole block commits")
    command("errors", apart)
    command("guide", guide)
    command("record", record)
    one = command("prior", table_of_chips)
    one.add_argument("folders", nargs="*", type=Path, help="models to measure on this CPU")
    return parser.parse_args()


def main() -> None:
    """Run the command."""
    asked = parsed()
    try:
        asked.run(asked)
    except DFlashError as error:
        sys.exit(f"{error.message} {error.hint}")


if __name__ == "__main__":
    main()
