"""What `dflash bench` asks: the bundled prompts, files of one's own, the papers' suites."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import dflash_mlx
from dflash_mlx.bench import questions
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.installation import install_command


def test_bundled_prompts_are_the_held_out_ones():
    """Guards the file in the wheel: made by the generator, nothing that was trained on."""
    held_out = import_module("held_out")
    file = Path(str(dflash_mlx.__file__)).parent / "bundled" / "prompts.jsonl"
    assert file.read_text("utf-8").splitlines() == held_out.lines()


def test_bundled_prompts_are_of_all_families():
    found = questions.questions_of("bundled", 4)
    assert [q.task for q in found] == ["arithmetic", "lists", "functions", "everyday"]
    assert len(questions.questions_of("bundled")) == 80


def test_kinds_of_lines(tmp_path):
    file = tmp_path / "own.jsonl"
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    lines = [
        "a",
        {"prompt": "b", "task": "sums"},
        {"messages": [*chat, {"role": "assistant", "content": "said"}]},
        {"turns": ["c", "d"]},
    ]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    found = questions.read_questions(file)
    assert [(q.suite, q.number, q.task) for q in found] == [
        ("own", 1, "own"), ("own", 2, "sums"), ("own", 3, "own"), ("own", 4, "own"),
    ]  # fmt: skip
    assert found[2].turns == (tuple(chat),)
    assert found[3].turns == questions.from_user(["c", "d"])
    assert len({q.digest for q in found}) == 4


@pytest.mark.parametrize(
    "line",
    ["{", "7", "{}", '{"prompt": ""}', '{"prompt": "a", "turns": ["b"]}', '{"turns": []}',
     '{"turns": ["a", 1]}', '{"messages": []}', '{"messages": [{"role": "user"}]}',
     '{"messages": [{"role": "assistant", "content": "a"}]}', '{"prompt": "a", "task": 1}',
     "[" * 100_000, "9" * 5000],
)  # fmt: skip
def test_bad_lines_are_named(tmp_path, line):
    file = tmp_path / "own.jsonl"
    file.write_text(f'"fine"\n\n{line}\n')
    with pytest.raises(DFlashError, match=r"line 3 of '.*own.jsonl' is not a prompt\."):
        questions.read_questions(file)


def test_bad_files(tmp_path):
    for name, content, message in (
        ("none", None, "No such file or directory"),
        ("empty", b"\n\n", "there are no prompts in"),
        ("binary", b"\xff\xfe", "it is not UTF-8 text"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DFlashError, match=message):
            questions.read_questions(tmp_path / name)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\r\n", "\x1c"])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    """JSON strings hold other line ends as they are, and editors leave a mark at the front."""
    file = tmp_path / "own.jsonl"
    text = json.dumps(f"one{separator}two", ensure_ascii=False)
    file.write_bytes(f"\ufeff{text}\r\n{text}\n".encode())
    found = questions.read_questions(file)
    assert [q.turns[0][0]["content"] for q in found] == [f"one{separator}two"] * 2


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
    """A `datasets` library of these rows, or that raises them."""

    def load_dataset(*names, **options):
        if calls is not None:
            calls.append((names, options))
        if isinstance(rows, Exception):
            raise rows
        return Rows(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_every_suite_asks_its_columns(monkeypatch):
    calls = []
    fake_datasets(monkeypatch, [{**ROW, "number": n} for n in range(200)], calls)
    for name, suite in questions.SUITES.items():
        if name == "mt-bench":
            fake_datasets(monkeypatch, [{"prompt": ["a", "b"]}] * 200, calls)
        found = questions.questions_of(name)
        assert len(found) == suite.count
        assert len(found[0].turns) == (2 if name == "mt-bench" else 1)
        assert {q.task for q in found} == {name}
        fake_datasets(monkeypatch, [ROW] * 200, calls)
        if name != "mt-bench":
            assert len(questions.questions_of(name, 3)) == 3
    assert (("openai/gsm8k", "main"), {"split": "test"}) in calls
    fake_datasets(monkeypatch, [ROW] * 200)
    assert len(questions.questions_of("gsm8k", 150)) == 150  # more than the papers ask
    fake_datasets(monkeypatch, [{"problem": f"p{n}"} for n in range(50)])
    texts = [q.turns[0][0]["content"].split("\n")[0] for q in questions.questions_of("aime25", 3)]
    assert texts == ["p49", "p48", "p47"]  # in the order of the shuffle
    files = [options for names, options in calls if names == ("json",)]
    assert files[0]["data_files"] == "hf://datasets/livecodebench/code_generation_lite/test6.jsonl"


def test_wording_of_optional_columns():
    """An instruction's input and a problem's starting code are asked when they are there."""
    assert questions.instruction({"instruction": "i", "input": "n"}) == ["i\n\nn"]
    assert questions.instruction(ROW) == ["i"]
    assert "x = 1" in questions.programming({"question_content": "c", "starter_code": "x = 1"})[0]
    assert "standard input" in questions.programming(ROW)[0]


def test_suites_that_cannot_be_read(monkeypatch):
    """Each with a sentence and what to do: no such suite, no package, no network, other columns."""
    with pytest.raises(UsageError, match="there is no suite 'mmlu'"):
        questions.questions_of("mmlu")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DFlashError, match="needs the package 'datasets'") as fault:
        questions.questions_of("gsm8k")
    assert install_command("datasets") in fault.value.hint
    fake_datasets(monkeypatch, ConnectionError("Couldn't reach the Hub.\nmore"))
    with pytest.raises(DFlashError, match=r"cannot be read \(Couldn't reach the Hub\)\.") as fault:
        questions.questions_of("gsm8k")
    assert "--prompts" in fault.value.hint
    for rows in ([{"other": 1}], [{"question": None}], []):
        fake_datasets(monkeypatch, rows)
        with pytest.raises(DFlashError, match="does not have the expected columns"):
            questions.questions_of("gsm8k")
