"""The editor of prompts, without a terminal."""

from importlib import import_module
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input

line_editor = import_module("dflash_mlx.cli.terminal.line_editor")
Output = import_module("dflash_mlx.cli.terminal.output").Output
TypeAhead = import_module("dflash_mlx.cli.terminal.keys").TypeAhead


def test_a_history_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: prompts are read and remembered, and the reason is said once."""
    history = tmp_path / "history"
    with create_pipe_input() as keys, create_app_session(input=keys):
        editor = line_editor.LineEditor(Output(), lambda text: [], history, TypeAhead())
        for typed, text in (("one\r", "one"), ("two\r", "two"), ("\x1b[A\x1b[A\r", "one")):
            keys.send_text(typed)
            assert editor.read() == text
            if history.is_file():  # the first prompt is in it
                history.unlink()
                history.mkdir()
        editor.show("typed ahead")
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("cannot be kept") == 1
    assert "Is a directory" in shown.out + shown.err
    assert "Traceback" not in shown.out + shown.err
