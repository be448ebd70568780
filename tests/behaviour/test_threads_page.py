"""examples/guide/threads.md: each block of code runs, and says what it says it does."""

import re
from pathlib import Path
from typing import Any

import pytest

import dflash_mlx
from dflash_mlx.types import Block

PAGE = (Path(__file__).parents[2] / "examples/guide/threads.md").read_text(encoding="utf-8")
CODE = {
    part.partition("\n")[0]: code
    for part in PAGE.split("\n## ")[1:]
    for code in re.findall(r"```python\n(.*?)```", part, re.S)
}

SUM, DAY = "What is 25 plus 17?", "Which day comes after Wednesday?"
LONG = "Write a Python function that counts the vowels in a word."
PRINTS = [
    ("A script with threads", [SUM, DAY]),
    ("asyncio", [SUM, DAY, "What is the capital of France?"]),
    ("A window", [SUM]),
    ("Many prompts at once", [SUM, DAY]),
    ("A notebook", [LONG]),
]


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    pair = dflash_mlx.load()
    prompts = {
        prompt for code in CODE.values() for prompt in re.findall(r'"([A-Z][^"]{9,})"', code)
    }
    return {prompt: dflash_mlx.generate(pair, prompt).text for prompt in prompts}


def test_no_block_is_left_out() -> None:
    """The tests below name each of them."""
    assert set(CODE) == {name for name, _ in PRINTS}
    assert PAGE.count("```python") == len(CODE)


@pytest.mark.parametrize(("name", "prompts"), PRINTS)
def test_a_block_of_code(
    name: str, prompts: list[str], said: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the answers that its prompts get alone."""
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(CODE[name], name, "exec"), scope)
    assert capsys.readouterr().out.split() == " ".join(said[prompt] for prompt in prompts).split()


def test_who_leaves_a_window_stops_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stopped` ends the thread at the next block."""
    scope: dict[str, Any] = {"__name__": "page"}
    exec(CODE["A window"].partition("\nanswer =")[0], scope)
    answer = scope["Answer"](None, "")
    answer.stopped.set()
    monkeypatch.setattr(dflash_mlx, "stream", lambda *_: iter([Block((1,), text="a")] * 3))
    answer.run()
    assert [answer.texts.get(), answer.texts.get()] == ["a", None]
