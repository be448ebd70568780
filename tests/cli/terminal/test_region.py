"""Moving lines: they leave nothing behind and take nothing along, whatever the window does."""

import random
import re
from importlib import import_module

import pytest
from screen import Screen

region = import_module("dflash_mlx.cli.terminal.live_region")

SIZES = [(80, 24), (100, 40), (40, 12), (20, 5), (10, 2)]


def play(screen, *, frames=60, resizes=(), seed=0):
    """Print numbered lines above a region of changing height; the lines that should stand."""
    rng = random.Random(seed)
    moving = region.LiveRegion(screen.write, screen.size)
    wanted = []
    screen.write("before\n")
    for frame in range(frames):
        finished = [f"line {frame}.{n}" for n in range(rng.choice([0, 0, 1, 3]))]
        live = [f"live {frame} {'x' * rng.randint(0, 120)}" for _ in range(rng.randint(1, 9))]
        wanted += finished
        moving.draw(finished, live)
        if resizes and frame % 7 == 3:
            screen.resize(*rng.choice(resizes))
    moving.erase()
    return ["before", *wanted]


@pytest.mark.parametrize("size", SIZES)
def test_every_line_stands_once_and_no_moving_line_stays(size):
    screen = Screen(*size)
    wanted = play(screen)
    assert screen.lines() == wanted
    assert screen.cursor[0] == 0
    assert not screen.cursor_hidden


@pytest.mark.parametrize("seed", range(5))
def test_window_changes_size(seed):
    """Narrower, wider, lower and higher: a line that was printed stays, no moving line does."""
    screen = Screen(80, 24)
    wanted = play(screen, frames=80, resizes=[(80, 24), (40, 12), (100, 40), (30, 16)], seed=seed)
    assert screen.lines() == wanted


@pytest.mark.parametrize("step", [-1, 1])
def test_one_row_too_few_or_too_many_is_seen(step):
    """The planted fault: the cursor comes back to the wrong row."""
    screen = Screen(80, 24)
    screen.on_write = lambda text: re.sub(
        r"\x1b\[(\d+)A", lambda found: f"\x1b[{int(found[1]) + step}A", text
    )
    wanted = play(screen)
    assert screen.lines() != wanted


def test_region_in_the_upper_left_corner(monkeypatch):
    """tmux keeps what is erased from there in its history; the planted fault erases plainly."""
    found = []
    for erase in (region.ERASE_BELOW, "\r\x1b[J"):
        monkeypatch.setattr(region, "ERASE_BELOW", erase)
        screen = Screen(40, 12)
        moving = region.LiveRegion(screen.write, screen.size)
        for frame in range(5):
            moving.draw([], [f"live {frame}"] * 3)
            screen.resize(40 - frame, 12)
        moving.draw(["line"], ["live"])
        moving.erase()
        found.append(screen.lines())
    assert found[0] == ["line"]
    assert found[1] != ["line"]


def test_a_line_too_wide_is_seen():
    """The planted fault: a line that the terminal breaks takes a row more than is counted."""
    screen = Screen(20, 8)
    moving = region.LiveRegion(screen.write, lambda: (40, 8))
    for _ in range(3):
        moving.draw([], ["x" * 30, "end"])
    moving.erase()
    assert screen.lines() != []


def test_region_taller_than_the_screen_is_cut_from_the_top():
    screen = Screen(20, 5)
    moving = region.LiveRegion(screen.write, screen.size)
    for frame in range(3):
        moving.draw([], [f"{frame}.{line}" for line in range(9)])
    assert screen.lines() == ["2.5", "2.6", "2.7", "2.8"]
    moving.erase()
    assert screen.lines() == []


def test_a_frame_is_one_write_and_the_same_frame_none():
    screen = Screen(20, 5)
    moving = region.LiveRegion(screen.write, screen.size)
    moving.draw(["a", "b"], ["live"])
    assert screen.writes == 1
    moving.draw([], ["live"])
    assert screen.writes == 1
    screen.resize(30, 5)
    moving.draw([], ["live"])
    assert screen.writes == 2


def test_cursor_is_hidden_only_while_something_moves():
    screen = Screen(20, 5)
    moving = region.LiveRegion(screen.write, screen.size)
    moving.draw(["a"], ["live"])
    assert screen.cursor_hidden
    moving.erase()
    assert not screen.cursor_hidden
    moving.draw(["b"], [])
    assert not screen.cursor_hidden
    written = screen.written
    moving.erase()
    assert screen.written == written


@pytest.mark.parametrize(
    ("line", "columns", "shown"),
    [
        ("abcdef", 4, "abcd"),
        ("\x1b[1mabc\x1b[0mdef", 4, "\x1b[1mabc\x1b[0md"),
        ("\x1b[1mabcdef\x1b[0m", 4, "\x1b[1mabcd\x1b[0m"),
        ("你好世界", 5, "你好"),
        ("\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}x", 5, "\N{WOMAN}\u200d\N{WOMAN}\u200d"),
    ],
)
def test_cut(line, columns, shown):
    """Styles end even when the text they are for is cut; joined emoji count as drawn apart."""
    assert region.truncate(line, columns) == shown
