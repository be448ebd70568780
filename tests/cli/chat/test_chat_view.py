"""An answer streams to a terminal: everything once, nothing stray, whatever size the window has."""

import re
import sys
import time
from dataclasses import replace
from importlib import import_module

import pytest
from long_answer import DOCUMENT, blocks_of, faults
from screen import Screen, Wire

from dflash_mlx.engine.stats import Stats
from dflash_mlx.types import Block

chat_view, output, markdown, render = (
    import_module(f"dflash_mlx.cli.{name}")
    for name in ("chat.view", "terminal.output", "terminal.markdown", "terminal.renderer")
)

SIZES = [(80, 24), (100, 40), (40, 12), (20, 5)]


@pytest.fixture
def terminal(monkeypatch):
    """Gives an output whose stdout is a screen; called in the test, as pytest changes streams."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(chat_view, "FRAME_INTERVAL", 0)  # a frame for each block

    def install(screen, encoding="utf-8", **options):
        wire = Wire(screen)
        wire.encoding = encoding
        monkeypatch.setattr(sys, "stdout", wire)
        monkeypatch.setattr(output, "stdout_size", screen.size)
        monkeypatch.setattr(chat_view, "stdout_size", screen.size)
        return output.Output(**options)

    return install


def play(shower, blocks, between=lambda number: None):
    """Show blocks as an answer; never let dear frames be left out."""
    stats = Stats()
    with shower:
        for number, block in enumerate(blocks):
            stats.record(block)
            shower._next_frame_at = 0
            shower.block(block, stats)
            between(number)
    return shower


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("size", SIZES)
def test_screen_does_not_depend_on_how_the_text_came(terminal, size):
    """Everything once, no moving line left, the same for every way to cut the text."""
    screens = []
    for step in (1, 3, 12, 1000):
        screen = Screen(*size)
        play(chat_view.make_chat_view(terminal(screen)), blocks_of(DOCUMENT, step))
        assert faults(screen) == {}
        screens.append(screen.text())
        assert screen.cursor[0] == 0
        assert not screen.cursor_hidden
    assert len(set(screens)) == 1
    assert "\n\n\n" not in screens[0].replace('by far" * argument\n\n\nprint', "")
    assert not screens[0].startswith("\n")


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_lost(terminal, size):
    """What stands in the end is what the pieces look like, sign for sign; rows break anywhere."""
    screen, stream = Screen(*size), markdown.MarkdownStream()
    play(chat_view.make_chat_view(terminal(screen)), blocks_of(DOCUMENT, 12))
    renderer = render.Renderer()
    fragments = stream.feed(DOCUMENT) + stream.finish()
    lines = renderer.lines(fragments, size[0] - 1)
    wanted = re.sub(r"\x1b\[[0-9;]*m|\s", "", "".join(lines))
    assert re.sub(r"\s", "", screen.text()) == wanted
    for word in re.findall(r"\w+", DOCUMENT.replace("```", "``` ")):
        assert word in wanted or word in ("python", "sh", "js", "text", "1")


def test_the_screen(terminal):
    screen = Screen(30, 10)
    text = "# Title\nA `word` and\nmore\n- one\n- two\n\n```python\nx = 1\n```\nend"
    play(chat_view.make_chat_view(terminal(screen)), blocks_of(text, 4))
    assert screen.lines() == [
        *["Title", "", "A word and", "more", "", " • one", " • two", "", "x = 1", "", "end"]
    ]


@pytest.mark.parametrize(
    ("text", "told"), [("all of this is one and the same again. " * 12, True), (DOCUMENT, False)]
)
def test_a_loop_is_told_while_it_runs(terminal, text, told):
    """One ran for 3,375 tokens without a word."""
    screen = Screen(80, 24)
    blocks = [replace(block, tokens=(*map(ord, block.text),)) for block in blocks_of(text, 3)]
    seen = set()

    def between(_):
        seen.add("repeats itself: Ctrl-C stops" in screen.text())

    play(chat_view.make_chat_view(terminal(screen)), blocks, between)
    assert (True in seen) is told
    assert "repeats itself" not in screen.text()


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("seed", range(6))
def test_window_changes_size_in_mid_stream(terminal, seed):
    """Narrower and wider, lower and higher: each heading stands once, no moving line stays."""
    screen = Screen(80, 24)
    sizes = [(60, 20), (100, 40), (40, 12), (80, 24), (50, 30), (90, 9)]

    def between(number):
        if number % 9 == 8:
            screen.resize(*sizes[(number // 9 + seed) % len(sizes)])

    play(chat_view.make_chat_view(terminal(screen)), blocks_of(DOCUMENT, 12), between)
    assert faults(screen) == {}


@pytest.mark.parametrize("step", [-1, 1])
def test_wrong_rows_are_seen(terminal, step):
    """The planted fault: the region goes one row too few or too many up."""
    right, wrong = Screen(80, 24), Screen(80, 24)
    wrong.on_write = lambda text: re.sub(
        r"\x1b\[(\d+)A", lambda found: f"\x1b[{int(found[1]) + step}A", text
    )
    for screen in (right, wrong):
        play(chat_view.make_chat_view(terminal(screen)), blocks_of(DOCUMENT, 12))
    assert wrong.text() != right.text()


def test_region_while_it_streams(terminal):
    screen = Screen(40, 24)
    shower = chat_view.make_chat_view(terminal(screen))
    stats, seen = Stats(), []
    for block in blocks_of("First.\n\n" + "word " * 120 + "\n\nLast", 30):
        stats.record(block)
        shower._next_frame_at = 0
        shower.block(block, stats)
        lines = screen.lines()
        assert lines[:1] == ["First."][: len(lines) - 1]
        assert re.search(r"^[⠀-⣿] \d+ tok · ", lines[-1])
        if "…" in lines:
            seen.append(len(lines) - 1 - lines.index("…"))
    assert set(seen) == {chat_view.TAIL_ROWS}
    shower.__exit__()
    assert screen.text().split() == ["First.", *["word"] * 120, "Last"]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(30, r"( · τ 2.00)?"), (60, r" · τ 2.00.*"), (110, r" · τ 2.00 tokens per pass.*")],
)
def test_the_live_line_fits_the_screen(terminal, columns, shown):
    """In words where there is room, else in symbols, else without its last numbers."""
    screen = Screen(columns, 8)
    shower = chat_view.make_chat_view(terminal(screen))
    stats = Stats()
    for block in blocks_of("some text", 3):
        stats.record(block)
        shower._next_frame_at = 0
        shower.block(block, stats)
    assert re.fullmatch(r". 6 tok · [\d,.]+ tok/s" + shown, screen.lines()[-1])
    assert ("tokens per pass" in screen.text()) == (columns == 110)
    shower.__exit__()


def test_thinking_moves_and_folds(terminal):
    """Dim and eight rows at most while it runs, then one line; tokens and seconds are counted."""
    screen = Screen(60, 24)
    raw = []
    screen.on_write = lambda text: raw.append(text) or text
    thinking = "".join(f"thought {n}\n" for n in range(20)) + "so"
    tallest = 0

    def between(number):
        nonlocal tallest
        tallest = max(tallest, sum("thought" in line for line in screen.lines()))

    blocks = blocks_of("The answer.", 5, thinking=thinking)
    shower = play(chat_view.make_chat_view(terminal(screen)), blocks, between)
    assert tallest == chat_view.TAIL_ROWS  # the last row may be empty, the first then says "…"
    assert "\x1b[2mthought 3\x1b[0m" in "".join(raw)
    count = 2 * -(-len(thinking) // 5)
    assert (shower.thought_tokens, shower.thought_seconds > 0) == (count, True)
    first, empty, answer = screen.lines()
    assert re.fullmatch(rf"∴ thought for \d\.\d s, {count} tokens \(/think show\)", first)
    assert (empty, answer) == ("", "The answer.")


def test_thinking_stays_when_it_is_to_be_shown(terminal):
    screen = Screen(60, 24)
    view = chat_view.make_chat_view(terminal(screen), show_thinking=True)
    play(view, blocks_of("# Yes", 2, thinking="# well\n\n  hm, so"))
    assert screen.lines() == ["# well", "", "  hm, so", "", "Yes"]
    assert view.thought_tokens == 16


def test_thinking_without_an_answer(terminal):
    screen = Screen(60, 24)
    play(chat_view.make_chat_view(terminal(screen)), blocks_of("", 4, thinking="well, "))
    (line,) = screen.lines()
    assert re.match(r"∴ thought for \d\.\d s, 4 tokens", line)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_without_markdown_the_text_stays_as_it_is(terminal, step):
    screen = Screen(20, 12)
    text = "# no *heading*\n\n\n  1. words that go on and on\nend"
    view = chat_view.make_chat_view(terminal(screen), markdown=False)
    play(view, blocks_of(text, step))
    assert screen.lines() == [*["# no *heading*", "", "", "  1. words that go", "on and on", "end"]]


def test_slow_prompt_is_seen_and_a_quick_one_is_not(terminal, monkeypatch):
    screen = Screen(60, 24)
    shower = chat_view.make_chat_view(terminal(screen))
    with shower:
        shower.prefill(0, 4096)
        shower.prefill(4096, 4096)
        play(shower, blocks_of("a", 1))
    assert screen.lines() == ["a"]
    monkeypatch.setattr(chat_view, "PREFILL_DELAY", 0)
    monkeypatch.setattr(chat_view, "FRAME_INTERVAL", 0.01)
    shower = chat_view.make_chat_view(terminal(screen))
    with shower:
        shower.prefill(1024, 4096)
        for _ in range(500):
            time.sleep(0.01)
            if "1,024" in screen.text():
                break
        assert screen.lines()[-1][1:] == " reading the prompt 1,024/4,096 tokens"
    assert screen.lines() == ["a"]


def test_a_call_that_a_server_writes_is_waited_for(terminal):
    """Nothing comes then: the line below the text moves."""
    screen = Screen(60, 24)
    shower = chat_view.make_chat_view(terminal(screen))
    with shower:
        shower.block(next(iter(blocks_of("I look.", 7))), Stats())
        seen = {screen.text()}
        for _ in range(3):
            shower._next_frame_at = 0
            shower.waiting()
            seen.add(screen.text())
    assert len(seen) == 4
    assert {text.splitlines()[0] for text in seen} == {"I look."}


def test_a_fault_in_mid_stream_leaves_the_screen_sane(terminal):
    screen = Screen(60, 24)
    with pytest.raises(ZeroDivisionError):
        play(chat_view.make_chat_view(terminal(screen)), blocks_of("**a** b", 3), lambda n: 1 // n)
    assert screen.lines() == ["**a"]
    assert not screen.cursor_hidden
    assert screen.cursor == (0, 1)


def test_code_moves_below_its_first_lines(terminal):
    """Without an empty line between what is printed and the line that is being written."""
    screen = Screen(60, 24)
    shower = chat_view.make_chat_view(terminal(screen))
    shower.block(Block((1,), text="```py\nx = 1\ny ="), Stats())
    assert screen.lines()[:2] == ["x = 1", "y ="]
    shower.__exit__()
    shower.redraw()  # a key that was read in this moment
    assert screen.lines() == ["x = 1", "y ="]


def test_a_fault_of_the_renderer_leaves_the_screen_sane(terminal, monkeypatch):
    screen = Screen(60, 24)
    shower = chat_view.make_chat_view(terminal(screen))
    blocks = blocks_of("a b\n\n", 2)
    fault = lambda *_, **__: 1 // 0  # noqa: E731
    with pytest.raises(ZeroDivisionError):
        play(shower, blocks, lambda _: monkeypatch.setattr(shower._renderer, "lines", fault))
    assert screen.lines() == []
    assert not screen.cursor_hidden


def test_model_text_cannot_steer_the_terminal(terminal):
    """Neither in the answer nor in thinking; also when a sequence comes in parts."""
    screen = Screen(60, 24)
    raw = []
    screen.on_write = lambda text: raw.append(text) or text
    evil = "a\x1b]0;title\x07 `\x1b[31mb` \x9b1m\x1b[2J\r\n\x1b[H"
    view = chat_view.make_chat_view(terminal(screen), show_thinking=True)
    play(view, blocks_of(evil, 2, thinking=evil))
    ours = {"m", "J", "K", "A", "C", "h", "l"}
    for found in re.findall(r"\x1b(.)([\d;?]*)(.)", "".join(raw)):
        assert found[0] == "["
        assert found[2] in ours
        assert found[1:] not in {("31", "m"), ("2", "J")}
    assert screen.lines()[-1] == "[H"


def test_ascii(terminal):
    screen = Screen(60, 24)
    out = terminal(screen, "latin-1")
    shower = chat_view.make_chat_view(out)
    stats = Stats()
    with shower:
        for block in blocks_of("- é 中\n\n> q", 3, thinking="x"):
            stats.record(block)
            shower._next_frame_at = 0
            shower.block(block, stats)
            assert re.match(r"[-|/\\] \d+ tok \| ", screen.lines()[-1])
    lines = screen.lines()
    assert lines[0].startswith("* thought for")
    assert lines[1:] == ["", " * é ?", "", "| q"]


def test_what_is_written_stays_modest(terminal, monkeypatch):
    """400 blocks at speed: few frames, and each answer's text about once."""
    monkeypatch.setattr(chat_view, "FRAME_INTERVAL", 0.1)
    screen = Screen(80, 24)
    shower, stats = chat_view.make_chat_view(terminal(screen)), Stats()
    text = "".join(f"Paragraph {n} has some words to say.\n\n" for n in range(100))
    now = [1.0]
    monkeypatch.setattr(chat_view.time, "perf_counter", lambda: now[0])
    with shower:
        for block in blocks_of(text, len(text) // 400 + 1):
            now[0] += 0.02  # 50 blocks a second
            shower.block(block, stats)
    assert screen.text().count("Paragraph") == 100
    assert screen.writes < 85
    assert screen.written < 4 * len(text)


@pytest.mark.parametrize(
    ("options", "environment"),
    [({"plain": True}, {}), ({"quiet": True}, {}), ({}, {"TERM": "dumb"}), ({}, {"size": "0"})],
)
def test_plain_view_where_lines_cannot_move(terminal, monkeypatch, options, environment):
    screen = Screen(60, 24)
    if "size" in environment:
        screen.size = lambda: (0, 0)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = terminal(screen, **options)
    play(chat_view.make_chat_view(out), blocks_of("# *a*\n\n> b", 2, thinking="x"))
    assert screen.lines() == ["# *a*", "", "> b"]
    assert "\x1b" not in screen.text()
