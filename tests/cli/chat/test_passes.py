"""A watched answer: each token has the colour of its pass; without colours there are marks."""

import sys
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import openai_server
import pytest
import tiny
from golden_pair import RAW, said
from recorded_chat import RecordedState, chat_options, start_dialogue
from screen import Screen, Wire
from typer.testing import Result

from dflash_mlx.engine.stats import Stats
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Block

answers, backends, chat_view, output, pages, passes, render = (
    import_module(f"dflash_mlx.cli.{name}")
    for name in (
        *("answer", "backend.local", "chat.view", "terminal.output"),
        *("chat.pages", "passes", "terminal.render"),
    )
)
BLOCKS = [
    Block((1,), text="T"),
    Block((2, 3, 4), drafted=4, accepted=2, rejected=(24, 25), text="he\nca"),
    Block((5,), drafted=4, rejected=(24, 24, 25, 25), text="t"),
    Block((6, 7), drafted=1, accepted=1, text=" is "),
    Block((), text=""),
    Block((8,), text="wide, and so long that it is broken", finish_reason="stop"),
]


def letters(ids: Any) -> str:
    return "".join(chr(96 + token) for token in ids)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def show(
        screen: Screen,
        blocks: list[Block] = BLOCKS,
        each: Any = lambda: None,
        thinking: bool = False,
        **how: Any,
    ) -> Any:
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setattr(chat_view, "FRAME_INTERVAL", 0)
        monkeypatch.setattr(sys, "stdout", Wire(screen))
        monkeypatch.setattr(output, "stdout_size", screen.size)
        monkeypatch.setattr(chat_view, "stdout_size", screen.size)
        out = output.Output(**how)
        found = passes.Passes(letters, out)
        stats = Stats()
        with chat_view.make_chat_view(out, passes=found, show_thinking=thinking) as view:
            for block in blocks:
                stats.record(block)
                view._next_frame_at = 0
                view.block(block, stats)
                each()
        return found.legend(stats)

    return show


def cells(screen: Screen) -> list[tuple[str, str, bool]]:
    """The visible characters with colour, and whether they are struck out."""
    rows = screen._screen.buffer
    found = [rows[y][x] for y in range(screen.size()[1]) for x in range(screen.size()[0])]
    return [(c.data, c.fg, c.strikethrough) for c in found if c.data.strip()]


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (20, 8)])
def test_each_token_has_the_colour_of_its_pass(watched: Any, size: tuple[int, int]) -> None:
    """Over line ends and broken lines; two passes in a row differ. Nothing else stays."""
    screen = Screen(*size)
    legend = watched(screen)
    wanted = []
    number = 0
    for block in BLOCKS:
        number += bool(block.tokens)
        colour = passes.COLOURS[number % 3]
        wanted += [(letter, colour, False) for letter in block.text if letter.strip()]
    assert cells(screen) == wanted
    assert legend == (
        "  each colour is one pass of the target: 5 passes for 8 tokens "
        "· struck out: rejected drafts, 6 of 9"
    )


def test_rejected_drafts_are_struck_out_for_a_moment(watched: Any) -> None:
    screen = Screen(80, 24)
    seen: list[str] = []

    def look() -> None:
        seen.append("".join(letter for letter, _, struck in cells(screen) if struck))

    watched(screen, each=look)
    assert seen == ["", "xy", "xxyy", "", "", ""]


@pytest.mark.parametrize(
    ("how", "variable", "mark"), [({}, "1", "│"), ({"plain": True}, "", "|")]
)  # fmt: skip
def test_without_colours(
    watched: Any, how: Any, variable: str, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", variable)
    screen = Screen(80, 24)
    struck: list[Any] = []
    legend = watched(screen, each=lambda: struck.extend(c for c in cells(screen) if c[2]), **how)
    assert screen.lines() == [
        f"T{mark}he",
        f"ca{mark}t{mark} is {mark}wide, and so long that it is broken",
    ]
    assert {colour for _, colour, _ in cells(screen)} == {"default"}
    assert not struck
    mark = "│"  # `Output` replaces it
    assert legend.replace("|", mark) == (
        f"  {mark} comes after each pass of the target: 5 passes for 8 tokens "
        "· rejected drafts, 6 of 9"
    ).replace("|", mark)


def test_thinking_that_is_shown_has_colours_too(watched: Any) -> None:
    """The first token of the answer comes with the last ones of the thinking."""
    blocks = [
        Block((1,), thinking="hm"),
        Block((2, 3), drafted=1, accepted=1, thinking=", so", text="Yes"),
        Block((4,), text=".", finish_reason="stop"),
    ]
    screen = Screen(80, 24)
    watched(screen, blocks, thinking=True)
    first, second, third = passes.COLOURS[1], passes.COLOURS[2], passes.COLOURS[0]
    letters = [("hm", first), (",so", second), ("Yes", second), (".", third)]
    assert cells(screen) == [(one, colour, False) for text, colour in letters for one in text]


def test_text_is_not_mistaken_for_style(watched: Any) -> None:
    """Guards Markdown and escape sequences of a model."""
    screen = Screen(80, 24)
    watched(screen, [Block((1,), text="**a** \x1b[31m[red]b", finish_reason="stop")])
    assert screen.lines() == ["**a** [31m[red]b"]


# A real pair


@pytest.fixture(scope="module")
def golden() -> Pair:
    """A pair whose tokens are one character each."""
    return tiny.golden_pair("qwen3_full")


@pytest.mark.parametrize("mode", ["dflash", "ddtree", "baseline"])
def test_blocks_name_the_rejected_drafts(golden: Pair, mode: Any) -> None:
    """All of a chain that follow the accepted ones; the first is never the target's own token."""
    prompt = RAW[1]
    blocks = [*Session(golden).stream(prompt, raw=True, mode=mode, max_tokens=60)]
    if mode == "baseline":
        assert not any(block.rejected for block in blocks)
        return
    assert any(block.rejected for block in blocks)
    for block in blocks[:-1]:
        if mode == "dflash":
            assert len(block.rejected) == block.drafted - block.accepted
        else:
            assert len(block.rejected) <= block.depth - block.accepted
        if block.rejected:
            assert block.rejected[0] != block.tokens[block.accepted]


def test_generate_into_pipes(dflash: Callable[..., Result], golden: Pair) -> None:
    """The answer stays as it is; stderr has it with a mark after each pass."""
    words = (*RAW, "--max-tokens", "60", "--mode", "dflash")
    plain = dflash(*words)
    result = dflash(*words, "--watch")
    assert result.stdout == plain.stdout
    blocks = Session(golden).stream(RAW[1], raw=True, mode="dflash", max_tokens=60)
    texts = [block.text for block in blocks if block.text]
    assert "".join(texts) == said(0)[: len("".join(texts))]
    marked, legend = result.stderr.rstrip("\n").rsplit("\n  ", 1)
    assert marked.replace("|", "│").startswith("│".join(texts).rstrip("\n"))
    assert f"comes after each pass of the target: {len(texts)} passes for 60 tokens" in legend


@pytest.mark.parametrize("flag", ["--json", "--jsonl"])
def test_not_with_json(dflash: Callable[..., Result], flag: str) -> None:
    result = dflash(*RAW, "--watch", flag)
    assert result.exit_code == 2
    assert f"--watch and {flag} exclude each other." in result.stderr


def test_not_with_a_server(dflash: Callable[..., Result]) -> None:
    """Its answer comes without tokens."""
    with openai_server.openai_server() as fake:
        result = dflash("-m", fake.url, "--watch", "hi")
    assert result.exit_code == 2
    assert "needs a model on this machine" in result.stderr


@pytest.fixture
def state(golden: Pair) -> RecordedState:
    settings = GenerationOptions(max_tokens=40, mode="dflash")
    backend = backends.LocalBackend(golden)
    talk = start_dialogue(backend, settings, quiet=False, autosaves=False)
    return RecordedState(talk, talk.out, chat_options(model="x", draft="y"))


def test_watch_in_a_chat(state: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a │ between two passes of the target" in state.enter("/watch")
    told: list[str] = []
    state.out.note = lambda text, style="": told.append(text)
    state.dialogue.ask("hello")
    assert any("comes after each pass of the target" in text for text in told)
    assert capsys.readouterr().err.count("│") > 1
    assert state.enter("/watch") == "  answers are shown as Markdown again"
    told.clear()
    state.dialogue.ask("hello")
    assert not any("pass of the target" in text for text in told)
    for word, on in (("on", True), ("on", True), ("off", False), ("off", False)):
        state.enter(f"/watch {word}")
        assert state.dialogue.display.passes == on
    with pytest.raises(Exception, match="/watch cannot be 'maybe'"):
        state.enter("/watch maybe")


# The speed over an answer


def test_speed_over_an_answer() -> None:
    """Parts of the same number of rounds; the first round is the prompt's."""
    out = SimpleNamespace(ascii=False)
    rounds = [(5.0, 1, 0, 0), *((5.0 + n / 10, 2 + n, 4, 1) for n in range(1, 7))]
    answer = answers.Answer(Stats(), tokens=[1], rounds=rounds)
    assert pages.rates_of(answer) == pytest.approx([35, 55, 75])
    assert render.sparkline([35, 55, 75], out) == "▄▆█"
    assert render.sparkline([0, 10, 1000], SimpleNamespace(ascii=True)) == "118"
    long = answers.Answer(Stats(), tokens=[1], rounds=[(n, 3, 0, 0) for n in range(1000)])
    assert pages.rates_of(long) == [3] * 24
    answer.rounds = rounds[:6]
    assert pages.rates_of(answer) == []
    answer.rounds, answer.tokens = rounds, []  # of a server
    assert pages.rates_of(answer) == []


def test_stats_draws_it(state: Any) -> None:
    """Between the times and the prompt; its numbers are the least and the greatest rate."""
    answer = state.dialogue.ask("hello")
    assert "  speed" not in state.enter("/stats")  # it is short
    answer.rounds = [(0.1 * n * n, 2, 4, 1) for n in range(20)]
    page = state.enter("/stats")
    rates = pages.rates_of(answer)
    shape = render.sparkline(rates, state.out)
    low, high = f"{min(rates):,.0f}", f"{max(rates):,.0f}"
    assert f"  speed         {shape} {low} to {high} tok/s from its start to its end" in page
