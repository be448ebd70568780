"""Pictures of a run: speedup by task and mode, drafts kept by position, cost of a pass by width.

Each is a PNG of its own, about as wide as a README shows it. Needs `matplotlib`, which is imported
here only when something is drawn. Knows rows and costs, not how they were measured.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from dflash_mlx.errors import DFlashError

from .curve import Curve
from .modes import BASELINE
from .summary import ALL, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE, DOTS = (8.0, 3.6), 130  # inches, dots an inch
# Okabe and Ito's colours, which eyes of all kinds can tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999")
MARKS = "osD^vPX"
CROWDED = 24  # bars that are too many for a panel of half the width
BESIDE: dict = {"loc": "upper left", "bbox_to_anchor": (1, 1), "borderaxespad": 0}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "text.parse_math": False,  # a task may have a dollar in its name
    "axes.titlesize": 11,
}


def check_plotting(path: Path) -> None:
    """DFlashError when nothing can be drawn, or not there: better said before a long run."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DFlashError(
            "plots need the package 'matplotlib'.", hint="`pip install 'dflash-chat[bench]'`"
        ) from error
    if path.suffix.lower() != ".png":
        raise DFlashError(f"'{path}' is no PNG file.", hint="give a name that ends in .png")
    if not path.parent.is_dir():
        raise DFlashError(
            f"there is no folder '{path.parent}'.", hint="make it, or give another place"
        )
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise DFlashError(
            f"nothing can be written to '{path.parent}' ({error.strerror}).",
            hint="give another place",
        ) from None


def draw(path: Path, rows: Sequence[Row], curve: Curve | None, caption: str = "") -> list[Path]:
    """Draw what there is to show; the files `NAME-speedup.png`, `NAME-accept.png`, `NAME-cost.png`.

    `caption` says under each what it holds for. DFlashError as `check_plotting`, and when a file
    cannot be written.
    """
    check_plotting(path)
    drafting = [row for row in rows if row.mode != BASELINE]
    pictures: list[tuple[str, Callable[[Figure], None]]] = []
    if any(row.speedup for row in drafting):
        pictures.append(("speedup", lambda figure: speedups(figure, drafting)))
    if any(row.by_position for row in drafting):
        pictures.append(("accept", lambda figure: positions(figure, drafting)))
    if curve is not None:
        pictures.append(("cost", lambda figure: cost_curve(figure, drafting, curve)))
    found = []
    for name, picture in pictures:
        file = path.with_name(f"{path.stem}-{name}.png")
        save(file, picture, caption)
        found.append(file)
    return found


def save(file: Path, picture: "Callable[[Figure], None]", caption: str) -> None:
    """Draw one picture without a display, and write it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=SIZE, dpi=DOTS, layout="constrained")
        FigureCanvasAgg(figure)
        picture(figure)
        if caption:
            figure.supxlabel(caption, fontsize=8, color="#666666")
        try:
            figure.savefig(file)
        except OSError as error:
            raise DFlashError(
                f"'{file}' cannot be written ({error.strerror}).", hint="give --plot another place"
            ) from None


def colour_of(rows: Sequence[Row]) -> dict[str, str]:
    """A colour for every mode, the same in all pictures of a run."""
    modes = dict.fromkeys(row.mode for row in rows)
    return {mode: COLOURS[n % len(COLOURS)] for n, mode in enumerate(modes)}


def temperatures(rows: Sequence[Row]) -> list[float]:
    """The temperatures, from low to high."""
    return sorted({row.temperature for row in rows})


def panels(
    figure: "Figure", rows: Sequence[Row], *, stacked: bool = False
) -> "list[tuple[float, Axes]]":
    """A panel for every temperature with one scale, side by side or one above the other."""
    found = temperatures(rows)
    shape = (len(found), 1) if stacked else (1, len(found))
    axes = list(figure.subplots(*shape, sharey=True, squeeze=False).flat)
    if stacked:
        figure.set_size_inches(SIZE[0], 0.8 * SIZE[1] * len(found))
    for temperature, panel in zip(found, axes, strict=True):
        panel.set_title(f"temperature {temperature:g}", loc="left")
        panel.label_outer(remove_inner_ticks=True)
    return list(zip(found, axes, strict=True))


def speedups(figure: "Figure", rows: Sequence[Row]) -> None:
    """Bars of the median speedup, whiskers of the quartiles, a line at plain decoding's own."""
    colours = colour_of(rows)
    tasks = list(dict.fromkeys((row.suite, row.task) for row in rows))
    width = 0.8 / len(colours)
    stacked = len(temperatures(rows)) > 1 and len(tasks) * len(colours) > CROWDED
    for number, (temperature, panel) in enumerate(panels(figure, rows, stacked=stacked)):
        for place, (mode, colour) in enumerate(colours.items()):
            for at, task in enumerate(tasks):
                row = find(rows, task, mode, temperature)
                if row is None or row.speedup is None:
                    continue
                middle, x = row.speedup.median, at + (place - (len(colours) - 1) / 2) * width
                errors = [[middle - row.speedup.low], [row.speedup.high - middle]]
                panel.bar(x, middle, width * 0.92, color=colour, label=mode)
                panel.errorbar(x, middle, errors, color="#333333", lw=1, capsize=2)
        panel.axhline(1, color="#333333", lw=1, ls="--")
        panel.set_xticks(
            range(len(tasks)),
            [task for _, task in tasks],
            **turned(tasks, stacked or len(temperatures(rows)) == 1),
        )
        panel.grid(axis="x", visible=False)
        if number == 0 or stacked:
            panel.set_ylabel("speedup, × plain decoding")
    legend(figure)


def turned(tasks: Sequence[tuple[str, str]], wide: bool) -> dict:
    """How the names of tasks are written where there are too many for one line."""
    room = (110 if wide else 50) // len(tasks)
    return {"rotation": 30, "ha": "right"} if max(len(t) for _, t in tasks) > room else {}


def find(rows: Sequence[Row], task: tuple[str, str], mode: str, temperature: float) -> Row | None:
    """The row of one bar."""
    wanted = (*task, mode, temperature)
    return next((r for r in rows if (r.suite, r.task, r.mode, r.temperature) == wanted), None)


def overall(rows: Sequence[Row]) -> list[Row]:
    """The rows of all tasks together, or of the only one."""
    return [row for row in rows if row.suite == ALL] or list(rows)


def positions(figure: "Figure", rows: Sequence[Row]) -> None:
    """How often the draft at each position was kept, a line a mode."""
    from matplotlib.ticker import MaxNLocator

    colours = colour_of(rows)
    marks = dict(zip(colours, MARKS * len(colours), strict=False))
    for number, (temperature, panel) in enumerate(panels(figure, overall(rows))):
        for row in overall(rows):
            if row.temperature != temperature or not row.by_position:
                continue
            panel.plot(
                range(1, len(row.by_position) + 1),
                [100 * share for share in row.by_position],
                color=colours[row.mode],
                marker=marks[row.mode],
                ms=4,
                label=row.mode,
            )
        panel.set_ylim(0, 103)
        panel.set_xlabel("draft's position in the block")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        if number == 0:
            panel.set_ylabel("drafts kept, % of verifies")
    legend(figure)


def cost_curve(figure: "Figure", rows: Sequence[Row], curve: Curve) -> None:
    """Time of a pass by its rows, above how often each mode ran a pass of that width."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    widths, seconds = zip(*curve.verify, strict=True)
    milliseconds = [1000 * value for value in seconds]
    upper.plot(widths, milliseconds, "o-", color="#333333", ms=4, label="target, one pass")
    if curve.draft is not None:
        block, took = curve.draft
        label = f"drafter, a block of {block}"
        upper.axhline(1000 * took, color="#888888", ls="--", lw=1.2, label=label)
    upper.set_ylabel("milliseconds")
    upper.set_ylim(bottom=0)
    title = f"cost of a pass after {curve.depth:,} tokens, and the widths that were run"
    upper.set_title(title, loc="left")
    upper.legend(**BESIDE)
    colours = colour_of(rows)
    low = min(temperatures(rows), default=0.0)
    chosen = [row for row in overall(rows) if row.temperature == low and row.rounds]
    for place, row in enumerate(chosen):
        total = sum(part.count for part in row.rounds)
        shift = 2 ** (0.11 * (place - (len(chosen) - 1) / 2))
        at = [part.rows * shift for part in row.rounds]
        shares = [100 * part.count / total for part in row.rounds]
        thick = [0.09 * x for x in at]
        lower.bar(at, shares, thick, color=colours[row.mode], label=row.mode)
    lower.set_xscale("log", base=2)
    lower.set_xticks(widths, [str(width) for width in widths])
    lower.minorticks_off()
    lower.set_xlabel("rows of a pass: anchor and drafts")
    lower.set_ylabel(f"% of passes\nat temp {low:g}")
    lower.set_ylim(0, 103)
    if chosen:
        lower.legend(**BESIDE)


def legend(figure: "Figure") -> None:
    """One legend for all panels, above them."""
    found = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside upper right", ncols=len(found))
