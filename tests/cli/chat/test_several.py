"""`/retry 3`: several answers at once, side by side; one is chosen, or the old one stays."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import openai_server
import pytest
import tiny
from openai_server import Behaviour
from recorded_chat import RecordedState, chat_options, start_dialogue
from screen import Screen, Wire

from dflash_mlx import api, batch
from dflash_mlx.address import parse_address
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.remote.session import connect

answers = import_module("dflash_mlx.cli.answer")
local = import_module("dflash_mlx.cli.backend.local")
output = import_module("dflash_mlx.cli.terminal.output")
remote = import_module("dflash_mlx.cli.backend.remote")
several = import_module("dflash_mlx.cli.chat.several")
chat_view = import_module("dflash_mlx.cli.chat.view")
terminal_keys = import_module("dflash_mlx.cli.terminal.keys")
tool_box = import_module("dflash_mlx.cli.chat.tools")
transcript = import_module("dflash_mlx.cli.chat.transcript")

SEED = 5


class Asked(RecordedState):
    def replying(self, *replies: str) -> "Asked":
        self.replies = [*replies]
        self.questions: list[str] = []
        return self

    def ask_line(self, question: str) -> str:
        self.questions.append(question)
        return self.replies.pop(0)


def chat_with(backend: Any, **changes: Any) -> Asked:
    sampling = SamplingParams(temperature=1.0, seed=SEED)
    settings = GenerationOptions(sampling=sampling, mode="dflash", **changes)
    talk = start_dialogue(backend, settings)
    return Asked(talk, talk.out, chat_options())


@pytest.fixture(scope="module")
def golden() -> Pair:
    return tiny.golden_pair("qwen3_full")


@pytest.fixture
def fake() -> Iterator[Behaviour]:
    """A server that answers `n` times if it is vLLM, and once if it is another one."""
    with openai_server.openai_server(says="one two three") as found:
        yield found


@pytest.fixture
def state(fake: Behaviour) -> Asked:
    state = chat_with(remote.RemoteBackend(connect(parse_address(fake.url))))
    state.dialogue.ask("hello")
    return state


def check_seeds(pair: Pair) -> None:
    """Each answer is the one that its seed gives alone."""
    for chosen in (1, 3):
        state = chat_with(local.LocalBackend(pair), max_tokens=16)
        state.dialogue.ask("river")
        state.replying(f"{chosen}\n").enter("/retry 3")
        sampling = SamplingParams(temperature=1.0, seed=SEED + chosen - 1)
        alone = api.generate(pair, "river", sampling=sampling, max_tokens=16)
        assert state.dialogue.last_answer.tokens == alone.tokens
        assert state.dialogue.chat.turns[-1].answer == alone.text.strip("\n")


def test_each_answer_is_that_of_its_seed(golden: Pair) -> None:
    check_seeds(golden)


def test_answers_with_one_seed_are_noticed(golden: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = batch.as_choice
    monkeypatch.setattr(batch, "as_choice", lambda prompted, index: choice(prompted, 0))
    with pytest.raises(AssertionError):
        check_seeds(golden)


def test_the_answers_share_passes(golden: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards three answers that come one after the other."""
    state = chat_with(local.LocalBackend(golden), max_tokens=60, ignore_eos=True)
    state.dialogue.ask("river")
    engine = type(golden.engine)
    step = engine.step
    together: list[int] = []

    def watched(self: Any, sequences: Any) -> Any:
        together.append(len(sequences))
        return step(self, sequences)

    monkeypatch.setattr(engine, "step", watched)
    said = state.replying("\n").enter("/retry 3")
    assert max(together) == 3
    assert "3 answers · " in said
    assert len(state.dialogue.stats) == 4


def test_the_choice(state: Asked, fake: Behaviour) -> None:
    said = state.replying("4\n", "2\n").enter("/retry 3")
    assert fake.bodies[-1]["n"] == 3
    assert fake.bodies[-1]["messages"] == [{"role": "user", "content": "hello"}]
    assert "there is no answer '4'" in said
    assert "answer 2 stays" in said
    saved = transcript.load(state.dialogue.file.name)
    assert [turn.answer for turn in saved.turns] == ["2) one two three"]
    assert saved.turns == state.dialogue.chat.turns
    assert "1, 2, 3, or Enter for the one before" in state.questions[0]


def test_a_message_at_the_question_comes_back(state: Asked) -> None:
    """So does what was typed before it, and the answers can still be chosen."""
    state.keys = terminal_keys.KeyReader(terminal_keys.TypeAhead(), lambda: None)
    state.keys.typed.feed("and then?")
    said = state.replying("now in French\n", "9\n", "2\n").enter("/retry 2")
    assert "there is no answer 'now in French'" in said
    assert said.count("what you typed is at the prompt again") == 1
    assert "answer 2 stays" in said
    assert state.keys.typed.take_draft() == "and then?\nnow in French"


@pytest.mark.parametrize("reply", ["\n", ""])
def test_the_old_answer_stays(state: Asked, reply: str) -> None:
    before = state.dialogue.chat
    said = state.replying(reply).enter("/retry 2")
    assert "the answer before stays" in said
    assert state.dialogue.chat == before
    assert transcript.load(state.dialogue.file.name).turns == before.turns


def test_a_server_that_ignores_n(state: Asked, fake: Behaviour) -> None:
    """It is told, and its one answer can be chosen."""
    fake.kind = "someone"
    said = state.replying("2\n", "1\n").enter("/retry 3")
    assert "the server sent 1 of 3 answers" in said
    assert "there is no answer '2'" in said
    assert "answer 1 stays" in said


def test_ctrl_c_keeps_what_there_is(state: Asked, fake: Behaviour) -> None:
    """Nothing is chosen by itself."""
    fake.pause = 0.1
    fake.says = "word " * 300
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    said = state.replying("2\n").enter("/retry 2")
    assert "of 2 answers" not in said
    turn = state.dialogue.chat.turns[-1]
    assert turn.finish_reason == "interrupted"
    assert turn.answer.startswith("2) word")


def test_ctrl_c_while_prompts_are_read(golden: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token yet: nothing to choose, and no answer goes on."""
    state = chat_with(local.LocalBackend(golden), max_tokens=8)
    state.dialogue.ask("river")
    before = state.dialogue.chat
    state.replying()
    monkeypatch.setattr(golden.engine.scheduler.prompt_chunks, "sizes", {0: 2})
    monkeypatch.setattr(golden.engine.prefix_cache, "limit", 0)
    with monkeypatch.context() as patch:
        patch.setattr(several.SeveralView, "__enter__", interrupting)
        assert state.enter("/retry 2") == "  the answer before stays"
    assert state.dialogue.chat == before
    assert not golden.engine._running


def interrupting(view: Any) -> Any:
    os.kill(os.getpid(), signal.SIGINT)
    return view


def test_an_error_keeps_the_old_answer(state: Asked, fake: Behaviour) -> None:
    before = state.dialogue.chat
    fake.fault = "500"
    with pytest.raises(DFlashError, match="because of 500"):
        state.replying().enter("/retry 2")
    assert state.dialogue.chat == before


def test_what_cannot_be(state: Asked) -> None:
    """The same answers, and tools, are refused by name."""
    state.enter("/temp 0")
    with pytest.raises(UsageError, match="at temperature 0 all answers are the same") as found:
        state.enter("/retry 3")
    assert found.value.hint == "/temp 0.7, then /retry 3"
    state.enter("/temp 1")

    class Box(tool_box.ToolBox):
        schemas = [{"type": "function", "function": {"name": "add"}}]  # noqa: RUF012

    state.dialogue.tools = Box(state.out)
    with pytest.raises(UsageError, match="cannot call tools") as found:
        state.enter("/retry 3")
    assert found.value.hint == "/mcp off, then /retry 3"


# On the screen ------------------------------------------------------------------------------------

CODE = "x = 1  # a long line of code, longer than a column\n"
TEXTS = [f"One **two** three.\n\n```py\n{CODE}{CODE}```", "é " * 40, ""]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[str]]:
    """Shows the texts of a stream on a screen of this size; returns its lines at the end."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(chat_view, "FRAME_INTERVAL", 0)

    def show(columns: int, rows: int) -> list[str]:
        screen = Screen(columns, rows)
        monkeypatch.setattr(sys, "stdout", Wire(screen))
        for module in (output, chat_view):
            monkeypatch.setattr(module, "stdout_size", screen.size)
        out = output.Output()
        streamed = [answers.Answer(Stats()) for _ in TEXTS]
        with several.SeveralView(out, streamed, markdown=True) as view:
            for end in range(0, 120, 7):
                for answer, text in zip(streamed, TEXTS, strict=True):
                    answer.text = text[:end]
                view.draw()
                assert len(screen.lines()) <= rows // 2 + 1
            streamed[0].finish_reason = "stop"
        return screen.lines()

    return show


def test_side_by_side(shown: Callable[[int, int], list[str]]) -> None:
    """Columns where each has 30 cells; no line is wider than the screen, nothing is left behind."""
    lines = shown(120, 40)
    assert lines[0].split("│")[1].strip() == "2 (stopped)"
    assert lines[1].startswith("One two three.")
    assert {line.count("│") for line in lines} == {2}
    assert {line.index("│") for line in lines} == {lines[0].index("│")}
    assert sum(line.count("é") for line in lines) == 40
    assert "answers ready" not in "\n".join(lines)


def test_one_below_the_other(shown: Callable[[int, int], list[str]]) -> None:
    """Where columns would be too narrow."""
    lines = shown(40, 12)
    assert [line for line in lines if line[:1].isdigit()] == ["1", "2 (stopped)", "3 (stopped)"]
    assert all(len(line) < 40 for line in lines)
    assert sum(line.count("é") for line in lines) == 40


def test_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    streamed = [answers.Answer(Stats(), text=text, finish_reason="stop") for text in "ab"]
    with several.SeveralView(output.Output(), streamed, markdown=True) as view:
        view.draw()
    assert capsys.readouterr().out == "1\na\n\n2\nb\n\n"
