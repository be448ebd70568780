"""An answer that repeats itself is noticed, and what helps is said."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from openai_server import Behaviour, openai_server
from recorded_chat import start_dialogue
from scripted_server import HI, pair_saying

from dflash_mlx.options import GenerationOptions, SamplingParams

backends = import_module("dflash_mlx.cli.backend.local")
loops = import_module("dflash_mlx.cli.chat.loops")

PART = [*range(100, 125)]  # 25 tokens
LINE = "the cat sat down on the warm mat and "  # a token for each character


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([1, 2, *PART * 4, 3], (25, 4)),
        ([*PART * 3, *PART[:24]], None),  # one token is missing
        ([*PART * 3, 1, *PART * 3], None),
        ([*range(11)] * 4, None),  # 44 tokens
        *[([*range(n)] * 4, (n, 4)) for n in (12, 13, 14, 60, 70, 100)],
        ([*range(101)] * 9, None),
        ([7] * 47, None),
        ([7] * 80, (1, 80)),
        ([5, 6, 7] * 40, (3, 40)),
        ([*range(2000)], None),
        ([], None),
    ],
)
def test_what_is_a_loop(tokens: list[int], found: tuple[int, int] | None) -> None:
    """Up to 100 tokens, four times, 48 in all; the length is that of the shortest that repeats."""
    loop = loops.find_loop(tokens)
    assert (loop and (loop.length, loop.times)) == found


def test_lists_and_tables_are_none() -> None:
    """Guards answers whose rows look alike."""
    rows = [f"| row {n} | the same words in each of the rows of this table, but one |" for n in
            range(30)]  # fmt: skip
    assert loops.find_loop([*"\n".join(rows)]) is None
    assert loops.find_loop(loops.WORD.findall("\n".join(rows))) is None


def told_by(backend: Any, prompt: str, settings: GenerationOptions) -> list[str]:
    talk = start_dialogue(backend, settings, quiet=False, autosaves=False)
    told: list[str] = []
    talk.out.note = lambda text, style="": told.append(text)
    talk.ask(prompt)
    return [text for text in told if "repeats itself" in text]


@pytest.mark.parametrize("times", [3, 6])
def test_a_local_answer(times: int) -> None:
    pair = pair_saying(LINE * times, HI)
    told = told_by(backends.LocalBackend(pair), "hi", GenerationOptions(max_tokens=400))
    assert told == [
        "  the answer repeats itself: the same 37 tokens 6 times. "
        "Try /temp 0.7 or /presence-penalty 1.5, then /retry"
    ] * (times == 6)


@pytest.fixture
def fake() -> Iterator[Behaviour]:
    with openai_server() as how:
        yield how


def test_a_server_that_sends_no_tokens(fake: Behaviour) -> None:
    """Words stand for tokens there."""
    remote = import_module("dflash_mlx.cli.backend.remote").RemoteBackend
    session = import_module("dflash_mlx.remote.session")
    address = import_module("dflash_mlx.address").parse_address(fake.url)
    backend = remote(session.connect(address))
    settings = GenerationOptions(mode="auto", sampling=SamplingParams(temperature=0.7))
    told = told_by(backend, " ".join(["one two three four five six seven."] * 12), settings)
    assert told == [
        "  the answer repeats itself: the same 8 words 12 times. "
        "Try /presence-penalty 1.5, then /retry"
    ]
    assert told_by(backend, "one two three", settings) == []


@pytest.mark.parametrize(
    ("recommended", "sampling", "advice"),
    [
        ({"temperature": 0.6}, {}, "Try /set recommended or /presence-penalty 1.5"),
        ({"temperature": 0.6}, {"temperature": 0.6}, "Try /presence-penalty 1.5"),
        ({"temperature": 0.6}, {"temperature": 0.6, "presence_penalty": 1.5}, "Try a higher /temp"),
        ({}, {"repetition_penalty": 1.1}, "Try /temp 0.7"),
    ],
)
def test_advice(recommended: dict[str, float], sampling: dict[str, Any], advice: str) -> None:
    """Never what is set already."""
    assert loops.advice(recommended, SamplingParams(**sampling)) == advice
