"""What `dflash train` prints while it works, where no bar can move."""

from importlib import import_module

import pytest

from dflash_mlx.train.events import AnswersProgress, TapsProgress

Output = import_module("dflash_mlx.cli.terminal.output").Output
View = import_module("dflash_mlx.cli.train").View


def test_each_tenth_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the log: no line before the first answer is done, and none twice."""
    view = View(Output())
    for done in (0, 0, 1, 2, 2, 2, 5, 20):
        view.show(AnswersProgress(done, 20, 100 * done, 2.0))
    for done in (7, 7, 3, 9):  # two short sequences
        view.show(TapsProgress(done, 7 if done == 7 else 9, 1.0))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" · ")[0] for line in lines] == [
        "answers 2 of 20",
        "answers 5 of 20",
        "answers 20 of 20",
        "taps of 7 of 7 tokens",
        "taps of 7 of 7 tokens",
        "taps of 3 of 9 tokens",
        "taps of 9 of 9 tokens",
    ]
    assert lines[0].endswith("18 s left")
