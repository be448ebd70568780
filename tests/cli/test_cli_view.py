"""What a terminal gets to see, held against a stand-in for one."""

import io
import re
import sys
import time
from importlib import import_module

import pytest

from dflash_mlx.engine.stats import Stats
from dflash_mlx.types import Block

output, view, spinner = (
    import_module(f"dflash_mlx.cli.{name}")
    for name in ("terminal.output", "answer", "terminal.spinner")
)


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding="utf-8"):
        super().__init__(
            io.BytesIO(), encoding=encoding, errors="backslashreplace", write_through=True
        )

    def isatty(self):
        return True

    def shown(self):
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


@pytest.fixture
def terminals(monkeypatch):
    """Makes stdout and stderr terminals of 60 columns; called in the test, because pytest puts its
    own streams back between a fixture and the test."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(output, "stderr_columns", lambda: 60)
    monkeypatch.setattr(spinner, "stderr_columns", lambda: 60)

    def install(encoding="utf-8"):
        streams = Terminal(encoding), Terminal(encoding)
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        return streams

    return install


def play(shower, *blocks):
    stats = Stats()
    with shower:
        for block in blocks:
            stats.record(block)
            shower.block(block, stats)


def test_model_text_cannot_steer_a_terminal(terminals):
    """A model, or a page it repeats, must not be able to write escape sequences."""
    stdout, _stderr = terminals()
    out = output.Output()
    play(view.AnswerView(out), Block((1,), text="a\x1b]0;title\x07\x1b[31mb\x9b1m\r\tc\x00\n"))
    assert stdout.shown() == "a]0;title[31mb1m\tc\n"


def test_a_pipe_gets_the_bytes_as_they_are(terminals, monkeypatch):
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminals()
    monkeypatch.setattr(sys, "stdout", pipe)
    out = output.Output()
    play(view.AnswerView(out), Block((1,), text="\x1b[1mé\r\n"))
    assert pipe.buffer.getvalue() == "\x1b[1mé\r\n".encode()  # type: ignore[attr-defined]


def test_terminal_that_cannot_show_a_character(terminals):
    """An answer does not end in an encoding fault."""
    stdout, stderr = terminals("latin-1")
    out = output.Output()
    play(view.AnswerView(out), Block((1,), text="é中"))
    out.note("τ · 中")
    assert stdout.shown() == "é?\n"
    assert "tau | \\u4e2d" in stderr.shown()


def test_thinking_folds_into_one_line(terminals):
    stdout, stderr = terminals()
    out = output.Output()
    play(
        view.AnswerView(out),
        Block((1, 2), thinking="well, "),
        Block((3,), thinking="hm", text="Yes"),
        Block((4,), text="."),
    )
    assert stdout.shown() == "Yes.\n"
    shown = stderr.shown()
    assert re.search(r"∴ thought for \d\.\d s, 3 tokens", shown)
    assert "well" not in shown


def test_thinking_is_shown_when_asked_for(terminals):
    stdout, stderr = terminals()
    out = output.Output()
    play(
        view.AnswerView(out, thinking=True),
        Block((1, 2), thinking="well, \x1b[1m"),
        Block((3,), thinking="hm"),
        Block((4,), text="Yes."),
    )
    assert stdout.shown() == "Yes.\n"
    assert stderr.shown().startswith("\x1b[2mwell, [1m\x1b[0m\x1b[2mhm\x1b[0m")
    assert "thought for" not in stderr.shown()


def test_status_line_leaves_streamed_text_alone(terminals, monkeypatch):
    """Once text stands on the terminal, erasing a line would erase the text."""
    monkeypatch.setattr(view, "STATUS_INTERVAL", 0)
    stdout, stderr = terminals()
    out = output.Output()
    shower = view.AnswerView(out)
    play(shower, Block((1,)), Block((2,), text="Yes"), Block((3,)), Block((4,), text="."))
    assert stdout.shown() == "Yes.\n"
    assert "1 tok · " in stderr.shown()
    assert "3 tok" not in stderr.shown()


def test_json_on_a_terminal_has_no_status_line_in_it(terminals):
    stdout, stderr = terminals()
    out = output.Output()
    play(view.AnswerView(out, stdout="blocks"), Block((1,)), Block((2,), text="Yes"))
    assert len(stdout.shown().splitlines()) == 2
    assert stderr.shown() == ""


def test_status_line_fits_the_terminal(terminals):
    _stdout, stderr = terminals()
    out = output.Output()
    out.status("x" * 100)
    out.clear_status()
    assert "x" * 59 in stderr.shown()
    assert "x" * 60 not in stderr.shown()


@pytest.mark.parametrize("options", [{"quiet": True}, {"plain": True}])
def test_no_moving_line_when_not_wanted(terminals, options):
    _stdout, stderr = terminals()
    out = output.Output(**options)
    out.status("busy")
    out.clear_status()
    assert stderr.shown() == ""


def test_quick_work_shows_nothing_and_slow_work_leaves_nothing(terminals, monkeypatch):
    _stdout, stderr = terminals()
    out = output.Output()
    with spinner.Spinner(out, "loading"):
        pass
    assert stderr.shown() == ""
    monkeypatch.setattr(spinner, "SHOW_AFTER", 0.01)
    with spinner.Spinner(out, "loading \x1b[1mx", unit="bytes") as slow:
        slow.update(5_000_000, 10_000_000)
        time.sleep(0.3)
        slow.update(4_000_000, 10_000_000)  # two counters of one download: never backwards
        time.sleep(0.2)
    shown = stderr.shown()
    assert "loading [1mx" in shown
    assert "5.0/10.0 MB" in shown
    assert "4.0/10.0 MB" not in shown
    assert shown.endswith(("\x1b[2K", "\x1b[?25h"))


def test_tau_in_the_numbers_is_over_all_passes():
    """Guards "25 tokens, τ 2.00" for one pass with drafts and 22 without."""
    stats = Stats()
    for block in (Block((1,)), Block((2, 3), drafted=7, accepted=1)):
        stats.record(block)
    answer = view.Answer(stats, tokens=[1, 2, 3], text="x", finish_reason="stop")
    assert " · τ 2.00 · accept 14% · " in view.stats_line(answer, None, 0, 0)
    for _ in range(22):
        stats.record(Block((4,)))
    line = view.stats_line(answer, None, 0, 0)
    assert line.startswith("  25 tokens · ")
    assert " · τ 1.04 · accept 14% · " in line


def test_numbers_have_words_where_there_is_room():
    stats = Stats(prompt_tokens=40)
    for block in (Block((1,)), Block((2, 3), drafted=7, accepted=1)):
        stats.record(block)
    answer = view.Answer(stats, tokens=[1, 2, 3], text="x", finish_reason="stop")
    ends = [" · prompt 40 new · first token after 0.0 s", " · prompt 40 new", ""]
    words = " · τ 2.00 tokens per pass · 14% of drafts accepted · "
    line = view.stats_line(answer, None, None, 130, in_chat=True)
    assert words in line
    assert line.endswith(ends[0])
    for columns, end in ((80, ends[1]), (66, ends[2]), (0, ends[0])):
        line = view.stats_line(answer, None, None, columns, in_chat=True)
        assert " · τ 2.00 · accept 14% · " in line
        assert line.endswith(" s" + end)
        assert len(line) < (columns or 120)
