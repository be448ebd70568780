"""Moving lines: they leave nothing behind and take nothing along, whatever the window does."""

from importlib import import_module

import pytest
from screen import Screen

region = import_module("dflash_mlx.cli.terminal.live_region")


def test_region_in_the_upper_left_corner():
    """tmux keeps what is erased from there in its history."""
    screen = Screen(40, 12)
    moving = region.LiveRegion(screen.write, screen.size)
    for frame in range(5):
        moving.draw([], [f"live {frame}"] * 3)
        screen.resize(40 - frame, 12)
    moving.draw(["line"], ["live"])
    moving.erase()
    assert screen.lines() == ["line"]


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


def test_a_size_that_the_terminal_does_not_tell_is_that_before():
    sizes = iter([(20, 5), (0, 0)])
    moving = region.LiveRegion(print, lambda: next(sizes))
    assert [moving.size, moving.size] == [(20, 5), (20, 5)]


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
