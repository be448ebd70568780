"""The pictures that examples/bench draws of a benchmark."""

import json
from dataclasses import asdict, replace

import plots
import pytest
from bench_records import KEY, record, turn
from matplotlib.figure import Figure

from dflash_mlx.bench import Curve, summary
from dflash_mlx.bench.records import Rounds


def drawn_rows() -> list[summary.Row]:
    kept = {"verifies": 2, "drafted": 6, "accepted": 2}
    fast = turn(seconds=0.5, **kept, accepted_by_position=(1, 1, 0), rounds=(Rounds(4, 2, 4, 0.5),))
    return summary.summarise(
        [
            record(KEY, one, mode=mode, number=number, task=task, temperature=temperature)
            for number, task in enumerate(("sums", "lists"), 1)
            for temperature in (0.0, 1.0)
            for mode, one in (("baseline", turn()), ("dflash", fast))
        ]
    )


def test_pictures_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "DPI", 40)
    curve = Curve(32, ((1, 0.01), (2, 0.01), (4, 0.02)), (8, 0.005))
    rows = [replace(row, task=f"{row.task} for $x_$") for row in drawn_rows()]
    found = plots.draw(tmp_path / "x.png", rows, curve, "a machine of $1 or $_")
    assert [file.name for file in found] == ["x-speedup.png", "x-accept.png", "x-cost.png"]
    for file in found:
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size > 5_000
    nothing = [row for row in drawn_rows() if row.mode == "baseline"]
    assert plots.draw(tmp_path / "y.png", nothing, None) == []


def test_pictures_have_axes_units_and_a_legend():
    rows = [row for row in drawn_rows() if row.mode != "baseline"]
    figure = Figure()
    plots.speedup_bars(figure, rows)
    left, right = figure.axes
    assert (left.get_title("left"), right.get_title("left")) == ("temperature 0", "temperature 1")
    assert left.get_ylabel() == "speedup, × plain decoding"
    assert [t.get_text() for t in left.get_xticklabels()] == ["sums", "lists", "all"]
    assert [bar.get_height() for bar in left.patches] == [2, 2, 2]  # pyright: ignore
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["dflash"]

    figure = Figure()
    plots.acceptance_by_position(figure, rows)
    assert figure.axes[0].get_ylabel() == "drafts kept, % of verifies"
    assert "position" in figure.axes[0].get_xlabel()
    assert list(figure.axes[0].lines[0].get_ydata()) == [50, 50, 0]  # type: ignore[arg-type]

    figure = Figure()
    wide = (Rounds(8, 2, 4, 0.5),)
    rows = [replace(row, rounds=wide) if row.temperature else row for row in rows]
    plots.cost_curve(figure, rows, Curve(32, ((1, 0.01), (4, 0.02), (8, 0.03)), (8, 0.005)))
    upper, lower = figure.axes
    assert upper.get_ylabel() == "milliseconds"
    assert list(upper.lines[0].get_ydata()) == [10, 20, 30]  # type: ignore[arg-type]
    assert lower.get_ylabel() == "% of passes\nat temp 0"
    (bar,) = lower.patches
    assert bar.get_height() == 100  # pyright: ignore
    assert bar.get_x() + bar.get_width() / 2 == pytest.approx(4)  # pyright: ignore


def test_a_run_is_read_from_its_object(tmp_path):
    """What --json prints, also with --drafts, whose passes nobody timed."""
    facts = {
        "pair": {"target": "t", "dtype": "float32"}, "machine": {"chip": "M4", "cores": 10},
        "versions": {"mlx": "1", "dflash": "2"},
    }  # fmt: skip
    rows = drawn_rows()
    curve = Curve(32, ((1, 0.01),), (8, 0.005))
    one = {**facts, "rows": [row.data() for row in rows], "costs": asdict(curve)}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(one))
    assert plots.read_run(file) == (rows, curve, "t (float32) · M4, 10 cores · mlx 1 · dflash 2")
    file.write_text(json.dumps({"drafts": [{**one, "costs": None}] * 2}))
    assert plots.read_run(file)[:2] == ([*rows, *rows], None)
