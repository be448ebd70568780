"""What `dflash bench` leaves behind: the file of results that a run goes on with."""

import json
from dataclasses import replace

import pytest
from bench_records import FACTS, KEY, record

from dflash_mlx.bench import results
from dflash_mlx.bench.runner import Curve
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
    [{"turns": []}, {"peak_bytes": None}, {"number": "1"}, {"tokens": ["a"]},
     {"rounds": [{"rows": 1}]}, {"kind": "costs", "verify": []}, {"kind": "costs", "draft": [8]}],
)  # fmt: skip
def test_lines_of_another_kind_are_named(tmp_path, changes):
    """A line that is JSON, and no measurement: it would fail only when the tables are made."""
    file, data = tmp_path / "r.jsonl", {"kind": "answer", **record().data()}
    if "kind" in changes:
        data = {"depth": 5, "verify": [[1, 0.5]], "draft": None}
    for name, value in changes.items():
        (data if name in data or name == "kind" else data["turns"][0])[name] = value
    with results.Results(FACTS, file):
        pass
    whole = file.read_bytes() + json.dumps(data).encode() + b"\n"
    file.write_bytes(whole)
    with pytest.raises(DFlashError, match=r"line 2 of '.*' is not a benchmark result"):
        results.Results(FACTS, file)
    assert file.read_bytes() == whole
