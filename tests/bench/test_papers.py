"""The papers' suites, which examples/bench writes as prompts."""

import sys
from types import SimpleNamespace

import papers
import pytest

from dflash_mlx.bench import read_questions


class Rows(list):
    """Rows as the `datasets` library has them, in its order after a shuffle."""

    def shuffle(self, seed):
        assert seed == 42
        return Rows(reversed(self))


ROW = {
    "question": "q", "problem": "p", "prompt": "t", "question_content": "c", "starter_code": "",
    "instruction": "i", "input": "",
}  # fmt: skip


def fake_datasets(monkeypatch, rows, calls=None):
    """A `datasets` library of these rows."""

    def load_dataset(*names, **options):
        if calls is not None:
            calls.append((names, options))
        return Rows(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_every_suite_asks_its_columns(monkeypatch):
    calls = []
    fake_datasets(monkeypatch, [ROW] * 200, calls)
    for name, suite in papers.SUITES.items():
        if name == "mt-bench":
            continue
        asked = list(papers.questions_of(name))
        assert len(asked) == suite.count
        assert len(asked[0]) == 1
    assert (("openai/gsm8k", "main"), {"split": "test"}) in calls
    files = [options for names, options in calls if names == ("json",)]
    assert files[0]["data_files"] == "hf://datasets/livecodebench/code_generation_lite/test6.jsonl"
    assert len(list(papers.questions_of("gsm8k", 150))) == 150  # more than the papers ask
    fake_datasets(monkeypatch, [{"prompt": ["a", "b"]}])
    assert list(papers.questions_of("mt-bench")) == [["a", "b"]]
    fake_datasets(monkeypatch, [{"problem": f"p{n}"} for n in range(50)])
    texts = [texts[0].split("\n")[0] for texts in papers.questions_of("aime25", 3)]
    assert texts == ["p49", "p48", "p47"]  # in the order of the shuffle


def test_bench_reads_what_is_written(monkeypatch, capsys, tmp_path):
    """Each suite is a task; its turns are those of the data set."""
    fake_datasets(monkeypatch, [{**ROW, "prompt": ["first", "second"]}] * 3)
    monkeypatch.setattr(sys, "argv", ["papers.py", "gsm8k", "mt-bench", "-n", "2"])
    papers.main()
    file = tmp_path / "papers.jsonl"
    file.write_text(capsys.readouterr().out)
    found = read_questions(file)
    assert [question.task for question in found] == ["gsm8k"] * 2 + ["mt-bench"] * 2
    assert [len(question.turns) for question in found] == [1, 1, 2, 2]


def test_wording_of_optional_columns():
    """An instruction's input and a problem's starting code are asked when they are there."""
    assert papers.instruction({"instruction": "i", "input": "n"}) == ["i\n\nn"]
    assert papers.instruction(ROW) == ["i"]
    assert "x = 1" in papers.programming({"question_content": "c", "starter_code": "x = 1"})[0]
    assert "standard input" in papers.programming(ROW)[0]


def test_other_columns_are_refused(monkeypatch):
    for rows in ([{"other": 1}], [{"question": None}]):
        fake_datasets(monkeypatch, rows)
        with pytest.raises(SystemExit, match="does not have the expected columns"):
            list(papers.questions_of("gsm8k"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SystemExit, match="need the package 'datasets'"):
        list(papers.questions_of("gsm8k"))
