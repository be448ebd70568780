"""Plots of a benchmark: speedup by task and mode, acceptance by position, cost of a pass by width.

    dflash bench --json > run.json
    .venv/bin/python examples/bench/plots.py run.json run.png

draws run-speedup.png, run-accept.png and run-cost.png. Needs matplotlib.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import TypeAdapter

from dflash_mlx.bench import Curve, Row, overall

BASELINE = "baseline"
SIZE = (8.0, 3.6)  # inches
DPI = 130
# The palette of Okabe and Ito, safe for colour-blind readers.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999")
MARKERS = "osD^vPX"
MAX_BARS = 24  # in a panel of half the width
LEGEND_LETTERS = 105  # in a line of the legend
LEGEND_BESIDE: dict = {"loc": "upper left", "bbox_to_anchor": (1, 1), "borderaxespad": 0}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "text.parse_math": False,  # names of tasks may contain a dollar sign
    "axes.titlesize": 11,
}


def read_run(path: Path) -> tuple[list[Row], Curve | None, str]:
    """The rows of a run, the costs of a pass if they were measured, and a caption.

    path: what `dflash bench --json` printed, also with --drafts.
    """
    run = json.loads(path.read_text(encoding="utf-8"))
    parts = run.get("drafts", [run])
    rows = TypeAdapter(list[Row]).validate_python([row for part in parts for row in part["rows"]])
    curve = TypeAdapter(Curve | None).validate_python(parts[0]["costs"])
    return rows, curve, caption(parts[0])


def caption(run: dict[str, Any]) -> str:
    """The models, the machine and the versions, which are written under each plot."""
    pair, machine, versions = (run[part] for part in ("pair", "machine", "versions"))
    return " · ".join(
        (
            f"{pair['target']} ({pair['dtype']})",
            f"{machine['chip']}, {machine['cores']} cores",
            f"mlx {versions['mlx']}",
            f"dflash {versions['dflash']}",
        )
    )


def draw(path: Path, rows: Sequence[Row], curve: Curve | None, caption: str = "") -> list[Path]:
    """Draw `NAME-speedup.png`, `NAME-accept.png` and `NAME-cost.png`, as far as there is data.

    `path` is NAME.png; `caption` is written under each plot. Returns the files.
    """
    drafting = [row for row in rows if row.mode != BASELINE]
    plots: list[tuple[str, Callable[[Figure], None]]] = []
    if any(row.speedup for row in drafting):
        plots.append(("speedup", lambda figure: speedup_bars(figure, drafting)))
    if any(row.by_position for row in drafting):
        plots.append(("accept", lambda figure: acceptance_by_position(figure, drafting)))
    if curve is not None:
        plots.append(("cost", lambda figure: cost_curve(figure, drafting, curve)))
    files = []
    for name, plot in plots:
        file = path.with_name(f"{path.stem}-{name}.png")
        save(file, plot, caption)
        files.append(file)
    return files


def save(file: Path, plot: Callable[[Figure], None], caption: str) -> None:
    """Draw one plot without a display and write it to `file`."""
    with rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        plot(figure)
        if caption:
            figure.supxlabel(caption, fontsize=8, color="#666666")
        figure.savefig(file)


def colour_of(rows: Sequence[Row]) -> dict[str, str]:
    """The colour of each mode, the same in all plots of a run."""
    modes = dict.fromkeys(row.mode for row in rows)
    return {mode: COLOURS[n % len(COLOURS)] for n, mode in enumerate(modes)}


def temperatures(rows: Sequence[Row]) -> list[float]:
    return sorted({row.temperature for row in rows})


def panels(
    figure: Figure, rows: Sequence[Row], *, stacked: bool = False
) -> list[tuple[float, Axes]]:
    """One panel for each temperature with a shared y axis, side by side or stacked."""
    values = temperatures(rows)
    shape = (len(values), 1) if stacked else (1, len(values))
    axes = list(figure.subplots(*shape, sharey=True, squeeze=False).flat)
    if stacked:
        figure.set_size_inches(SIZE[0], 0.8 * SIZE[1] * len(values))
    for temperature, panel in zip(values, axes, strict=True):
        panel.set_title(f"temperature {temperature:g}", loc="left")
        panel.label_outer(remove_inner_ticks=True)
    return list(zip(values, axes, strict=True))


def speedup_bars(figure: Figure, rows: Sequence[Row]) -> None:
    """Bars of the median speedup with quartiles as error bars, and a line at 1."""
    colours = colour_of(rows)
    tasks = list(dict.fromkeys((row.suite, row.task) for row in rows))
    width = 0.8 / len(colours)
    stacked = len(temperatures(rows)) > 1 and len(tasks) * len(colours) > MAX_BARS
    for number, (temperature, panel) in enumerate(panels(figure, rows, stacked=stacked)):
        for mode_index, (mode, colour) in enumerate(colours.items()):
            for task_index, task in enumerate(tasks):
                row = find_row(rows, task, mode, temperature)
                if row is None or row.speedup is None:
                    continue
                middle = row.speedup.median
                x = task_index + (mode_index - (len(colours) - 1) / 2) * width
                errors = [[middle - row.speedup.low], [row.speedup.high - middle]]
                panel.bar(x, middle, width * 0.92, color=colour, label=mode)
                panel.errorbar(x, middle, errors, color="#333333", lw=1, capsize=2)
        panel.axhline(1, color="#333333", lw=1, ls="--")
        panel.set_xticks(
            range(len(tasks)),
            [task for _, task in tasks],
            **tick_label_style(tasks, stacked or len(temperatures(rows)) == 1),
        )
        panel.grid(axis="x", visible=False)
        if number == 0 or stacked:
            panel.set_ylabel("speedup, × plain decoding")
    add_legend(figure)


def tick_label_style(tasks: Sequence[tuple[str, str]], wide: bool) -> dict:
    """Text properties of the tick labels: rotated if they do not fit in one line."""
    room = (110 if wide else 50) // len(tasks)
    return {"rotation": 30, "ha": "right"} if max(len(t) for _, t in tasks) > room else {}


def find_row(
    rows: Sequence[Row], task: tuple[str, str], mode: str, temperature: float
) -> Row | None:
    key = (*task, mode, temperature)
    return next((r for r in rows if (r.suite, r.task, r.mode, r.temperature) == key), None)


def acceptance_by_position(figure: Figure, rows: Sequence[Row]) -> None:
    """Accepted drafts per verify at each position of the block, one line for each mode."""
    colours = colour_of(rows)
    markers = dict(zip(colours, MARKERS * len(colours), strict=False))
    for number, (temperature, panel) in enumerate(panels(figure, overall(rows))):
        for row in overall(rows):
            if row.temperature != temperature or not row.by_position:
                continue
            panel.plot(
                range(1, len(row.by_position) + 1),
                [100 * share for share in row.by_position],
                color=colours[row.mode],
                marker=markers[row.mode],
                ms=4,
                label=row.mode,
            )
        panel.set_ylim(0, 103)
        panel.set_xlabel("draft's position in the block")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        if number == 0:
            panel.set_ylabel("drafts kept, % of verifies")
    add_legend(figure)


def cost_curve(figure: Figure, rows: Sequence[Row], curve: Curve) -> None:
    """The time of a pass by its rows, and below the share of passes of each width by mode."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    widths, seconds = zip(*curve.verify, strict=True)
    milliseconds = [1000 * value for value in seconds]
    upper.plot(widths, milliseconds, "o-", color="#333333", ms=4, label="target, one pass")
    if curve.draft is not None:
        block, block_seconds = curve.draft
        label = f"drafter, a block of {block}"
        upper.axhline(1000 * block_seconds, color="#888888", ls="--", lw=1.2, label=label)
    upper.set_ylabel("milliseconds")
    upper.set_ylim(bottom=0)
    title = f"cost of a pass after {curve.depth:,} tokens, and the widths that were run"
    upper.set_title(title, loc="left")
    upper.legend(**LEGEND_BESIDE)
    colours = colour_of(rows)
    low = min(temperatures(rows), default=0.0)
    chosen = [row for row in overall(rows) if row.temperature == low and row.rounds]
    for index, row in enumerate(chosen):
        total = sum(part.count for part in row.rounds)
        shift = 2 ** (0.11 * (index - (len(chosen) - 1) / 2))
        positions = [part.rows * shift for part in row.rounds]
        shares = [100 * part.count / total for part in row.rounds]
        bar_widths = [0.09 * x for x in positions]
        lower.bar(positions, shares, bar_widths, color=colours[row.mode], label=row.mode)
    lower.set_xscale("log", base=2)
    lower.set_xticks(widths, [str(width) for width in widths])
    lower.minorticks_off()
    lower.set_xlabel("rows of a pass: anchor and drafts")
    lower.set_ylabel(f"% of passes\nat temp {low:g}")
    lower.set_ylim(0, 103)
    if chosen:
        lower.legend(**LEGEND_BESIDE)


def add_legend(figure: Figure) -> None:
    handles = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = max(1, LEGEND_LETTERS // (max(map(len, handles), default=0) + 6))  # 6: for the mark
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=columns)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="what `dflash bench --json` printed")
    parser.add_argument("picture", type=Path, help="NAME.png, for the plots NAME-speedup.png, ...")
    asked = parser.parse_args()
    for file in draw(asked.picture, *read_run(asked.run)):
        print(f"drawn: {file}")


if __name__ == "__main__":
    main()
