"""What `dflash bench` asks: the bundled prompts, files of one's own."""

import json
from importlib import import_module
from pathlib import Path

import pytest

import dflash_mlx
from dflash_mlx.bench import questions
from dflash_mlx.errors import DFlashError


def test_bundled_prompts_are_the_held_out_ones():
    """Guards the file in the wheel: made by the generator, nothing that was trained on."""
    held_out = import_module("held_out")
    file = Path(str(dflash_mlx.__file__)).parent / "bundled" / "prompts.jsonl"
    assert file.read_text("utf-8").splitlines() == held_out.lines()


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
    ["{", "7", '{"prompt": ""}', '{"prompt": "a", "turns": ["b"]}', '{"turns": ["a", 1]}',
     '{"messages": [{"role": "user"}]}', '{"messages": [{"role": "assistant", "content": "a"}]}',
     '{"prompt": "a", "task": 1}', "[" * 100_000],
)  # fmt: skip
def test_bad_lines_are_named(tmp_path, line):
    file = tmp_path / "own.jsonl"
    file.write_text(f'"fine"\n\n{line}\n')
    with pytest.raises(DFlashError, match=r"line 3 of '.*own.jsonl' is not a prompt\."):
        questions.read_questions(file)
    file.write_text("\n\n")
    with pytest.raises(DFlashError, match="there are no prompts in"):
        questions.read_questions(file)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\r\n", "\x1c"])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    """JSON strings hold other line ends as they are, and editors leave a mark at the front."""
    file = tmp_path / "own.jsonl"
    text = json.dumps(f"one{separator}two", ensure_ascii=False)
    file.write_bytes(f"\ufeff{text}\r\n{text}\n".encode())
    found = questions.read_questions(file)
    assert [q.turns[0][0]["content"] for q in found] == [f"one{separator}two"] * 2
