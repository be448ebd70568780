"""What `dflash bench` leaves behind: the file of results that a run goes on with, pictures."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import FACTS, KEY, record, turn

from dflash_mlx.bench import plot, results
from dflash_mlx.bench import results as summary
from dflash_mlx.bench.runner import Curve
from dflash_mlx.bench.schedule import Rounds
from dflash_mlx.errors import DFlashError


def test_results_go_on(tmp_path):
    """A torn last line is dropped, and what comes later stands where it stood."""
    file = tmp_path / "r.jsonl"
    curve = Curve(5, ((1, 0.5),), (8, 0.25))
    with results.Results(FACTS, file) as held:
        held.keep(record())
        assert len(file.read_bytes().splitlines()) == 2  # a kill loses nothing
        held.keep_curve(curve)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"kind": "answer", "sui')
    with results.Results(FACTS, file) as held:
        assert held.records == {KEY: record()}
        assert held.curve == curve
        assert file.read_bytes() == whole
        held.keep(record(repeat=2))
    assert file.read_bytes().startswith(whole)
    assert len(file.read_bytes().splitlines()) == 4
    with results.Results(FACTS, file) as held:
        assert set(held.records) == {KEY, replace(KEY, repeat=2)}


def test_two_runs_do_not_write_to_one_file(tmp_path):
    """The second would write over what the first adds."""
    file = tmp_path / "r.jsonl"
    with results.Results(FACTS, file) as held:
        with pytest.raises(DFlashError, match=r"another benchmark is writing to '.*r\.jsonl'"):
            results.Results(FACTS, file)
        held.keep(record())
    with results.Results(FACTS, file) as held:
        assert set(held.records) == {KEY}


def test_results_of_another_run_are_refused(tmp_path):
    file = tmp_path / "r.jsonl"
    with results.Results(FACTS, file):
        pass
    other = {**FACTS, "settings": {"max_tokens": 16}}
    with pytest.raises(DFlashError) as fault:
        results.Results(other, file)
    assert "of another run: its settings max tokens is 8, now it is 16." in fault.value.message
    with pytest.raises(DFlashError, match="its settings seed is not set, now it is 1"):
        results.Results({**FACTS, "settings": {"max_tokens": 8, "seed": 1}}, file)


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b'{"kind": "answer"}\n', b"[]\n", b"\xff\n", b"hello", b'{"my": "only copy"}',
     b'{"kind": "answer"}', b"[" * 100_000],
)  # fmt: skip
def test_other_files_are_refused_and_left_alone(tmp_path, content):
    file = tmp_path / "r.jsonl"
    file.write_bytes(content)
    with pytest.raises(DFlashError, match=r"line 1 of '.*' is not a benchmark result"):
        results.Results(FACTS, file)
    assert file.read_bytes() == content


@pytest.mark.parametrize("held", [b"", b"{", b'{"kind": "ru', b'{"kind": "run", "format"'])
def test_a_first_line_that_was_cut_off_is_written_again(tmp_path, held):
    file = tmp_path / "r.jsonl"
    file.write_bytes(held)
    with results.Results(FACTS, file):
        pass
    assert json.loads(file.read_bytes())["pair"] == {"target": "a"}


@pytest.mark.parametrize(
    "changes",
    [{"turns": []}, {"turns": [{}]}, {"peak_bytes": None}, {"task": 3}, {"number": "1"},
     {"decode_seconds": "x"}, {"tokens": ["a"]}, {"text": None}, {"rounds": [{"rows": 1}]},
     {"rounds": [{"rows": 1, "count": 1, "tokens": 1, "seconds": None}]}],
)  # fmt: skip
def test_lines_of_another_kind_are_named(tmp_path, changes):
    """A line that is JSON, and no measurement: it would fail only when the tables are made."""
    file, data = tmp_path / "r.jsonl", record().data()
    for name, value in changes.items():
        (data if name in data else data["turns"][0])[name] = value
    with results.Results(FACTS, file):
        pass
    whole = file.read_bytes() + json.dumps({"kind": "answer", **data}).encode() + b"\n"
    file.write_bytes(whole)
    with pytest.raises(DFlashError, match=r"line 2 of '.*' is not a benchmark result"):
        results.Results(FACTS, file)
    assert file.read_bytes() == whole


def test_costs_of_another_kind_are_named(tmp_path):
    file = tmp_path / "r.jsonl"
    for costs in ({"verify": []}, {"verify": [[1, "x"]]}, {"draft": [8]}, {"depth": None}):
        with results.Results(FACTS, file):
            pass
        data = {"kind": "costs", "depth": 5, "verify": [[1, 0.5]], "draft": None, **costs}
        file.write_bytes(file.read_bytes() + json.dumps(data).encode() + b"\n")
        with pytest.raises(DFlashError, match=r"line 2 of '.*' is not a benchmark result"):
            results.Results(FACTS, file)
        file.unlink()


# --- plots --------------------------------------------------------------------------------------


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
    monkeypatch.setattr(plot, "DPI", 40)
    curve = Curve(32, ((1, 0.01), (2, 0.01), (4, 0.02)), (8, 0.005))
    rows = [replace(row, task=f"{row.task} for $x_$") for row in drawn_rows()]
    found = plot.draw(tmp_path / "x.png", rows, curve, "a machine of $1 or $_")
    assert [file.name for file in found] == ["x-speedup.png", "x-accept.png", "x-cost.png"]
    for file in found:
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size > 5_000
    nothing = [row for row in drawn_rows() if row.mode == "baseline"]
    assert plot.draw(tmp_path / "y.png", nothing, None) == []


def test_pictures_have_axes_units_and_a_legend():
    from matplotlib.figure import Figure

    rows = [row for row in drawn_rows() if row.mode != "baseline"]
    figure = Figure()
    plot.speedup_bars(figure, rows)
    left, right = figure.axes
    assert (left.get_title("left"), right.get_title("left")) == ("temperature 0", "temperature 1")
    assert left.get_ylabel() == "speedup, × plain decoding"
    assert [t.get_text() for t in left.get_xticklabels()] == ["sums", "lists", "all"]
    assert [bar.get_height() for bar in left.patches] == [2, 2, 2]  # pyright: ignore
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["dflash"]

    figure = Figure()
    plot.acceptance_by_position(figure, rows)
    assert figure.axes[0].get_ylabel() == "drafts kept, % of verifies"
    assert "position" in figure.axes[0].get_xlabel()
    assert list(figure.axes[0].lines[0].get_ydata()) == [50, 50, 0]  # type: ignore[arg-type]

    figure = Figure()
    wide = (Rounds(8, 2, 4, 0.5),)
    rows = [replace(row, rounds=wide) if row.temperature else row for row in rows]
    plot.cost_curve(figure, rows, Curve(32, ((1, 0.01), (4, 0.02), (8, 0.03)), (8, 0.005)))
    upper, lower = figure.axes
    assert upper.get_ylabel() == "milliseconds"
    assert list(upper.lines[0].get_ydata()) == [10, 20, 30]  # type: ignore[arg-type]
    assert lower.get_ylabel() == "% of passes\nat temp 0"
    (bar,) = lower.patches
    assert bar.get_height() == 100  # pyright: ignore
    assert bar.get_x() + bar.get_width() / 2 == pytest.approx(4)  # pyright: ignore


def test_plots_are_refused_before_the_run(tmp_path, monkeypatch):
    for path, message in (
        (tmp_path / "x.pdf", "is not a PNG file"),
        (tmp_path / "no" / "x.png", "there is no folder"),
    ):
        with pytest.raises(DFlashError, match=message):
            plot.check_plotting(path)
    if Path("/proc").is_dir():
        with pytest.raises(DFlashError, match="nothing can be written to '/proc'"):
            plot.check_plotting(Path("/proc/x.png"))
    plot.check_plotting(tmp_path / "x.png")
    assert not list(tmp_path.glob("*x*"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DFlashError, match="need the package 'matplotlib'"):
        plot.check_plotting(tmp_path / "x.png")
