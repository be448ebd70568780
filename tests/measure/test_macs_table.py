"""The table of the reports of Macs. The two reports are made up: no Mac has been measured yet."""

import json
from pathlib import Path
from typing import Any

import pytest
from macs_table import EMPTY, FORECAST, MACS, forecast_of, read_report, table

GB = 2**30


def report(device: str, memory: int, *benches: dict[str, Any]) -> dict[str, Any]:
    """What mac_report.py writes, as far as the table reads it."""
    steps: list[dict[str, Any]] = [
        {"name": "machine", "result": {"device": device, "memory": memory}},
        {"name": "doctor", "result": {"checks": []}},
        {"name": "bench, stopped", "result": None},
    ]
    steps += [{"name": f"bench, {bench['pair']['target']}", "result": bench} for bench in benches]
    return {"label": device, "steps": steps}


def bench(target: str, dtype: str, **seconds: float) -> dict[str, Any]:
    """100 tokens in two tasks by each mode, in these seconds; and samples, which do not count."""
    rows = []
    for mode, took in seconds.items():
        rounds = [{"rows": 1, "count": 1, "tokens": 50, "seconds": took / 2}]
        rows += [{"mode": mode, "temperature": 0.0, "rounds": rounds}] * 2
        rows.append({"mode": mode, "temperature": 1.0, "rounds": [{"tokens": 9, "seconds": 99.0}]})
    return {"pair": {"target": target, "dtype": dtype}, "rows": rows}


def written(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps(content))
    return file


def test_two_reports_make_a_table(tmp_path: Path) -> None:
    """By chip, model and weights; a step or a mode that is missing is a dash."""
    qwen = "mlx-community/Qwen3-8B"
    many = [
        bench(f"{qwen}-8bit", "8-bit", baseline=4.0, dflash=2.5, auto=2.0),
        bench(f"{qwen}-4bit", "4-bit", baseline=2.0, auto=2.5),
    ]
    files = [
        written(tmp_path, "b.json", report("Apple M4 Max", 64 * GB, *many)),
        written(tmp_path, "a.json", report("Apple M1", 16 * GB, bench("bundled", "float32"))),
    ]
    found = [one for file in files for one in read_report(file)]
    lines = [*table(found, lambda chip, model: f"{chip}?" if model.endswith("4bit") else None)]
    assert lines[0].splitlines()[0].startswith("| chip | memory | model | weights | plain tok/s |")
    assert lines[1:-2] == [
        "| M1 | 16 GB | bundled | float32 | – | – | – | – | – |",
        f"| M4 Max | 64 GB | {qwen}-4bit | 4-bit | 50.0 | – | 40.0 | 0.80× | M4 Max? |",
        f"| M4 Max | 64 GB | {qwen}-8bit | 8-bit | 25.0 | 40.0 | 50.0 | 2.00× | – |",
    ]
    assert lines[-1].startswith("forecast: ")
    assert lines[-1].endswith("Nobody measured it.")


def test_a_virtual_gpu_is_left_out(tmp_path: Path) -> None:
    one = bench("bundled", "float32", baseline=1.0)
    file = written(tmp_path, "x.json", report("Apple Paravirtual device", 7 * GB, one))
    assert [*table(read_report(file))] == [EMPTY, FORECAST]


@pytest.mark.parametrize("content", [{}, [], {"steps": [{"name": "x"}]}, {"steps": []}])
def test_another_file_is_named(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.json is no report of a Mac"):
        read_report(written(tmp_path, "x.json", content))


def test_what_is_known_of_real_macs() -> None:
    """Nothing, and the folder's page says so until somebody sends a report."""
    reports = sorted(MACS.glob("*.json"))
    assert [*table(one for file in reports for one in read_report(file))]
    says_none = "no Mac has been measured" in (MACS / "README.md").read_text("utf-8")
    assert says_none == (not reports)


def test_what_no_forecast_knows() -> None:
    assert forecast_of("M9", "mlx-community/Qwen3-8B-4bit") is None
    assert forecast_of("M1", "mlx-community/Qwen3-8B-8bit") is None
