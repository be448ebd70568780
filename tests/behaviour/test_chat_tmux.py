"""The chat's view in a terminal that breaks lines anew: tmux."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import pytest
from long_answer import DOCUMENT, faults

SCRIPT = """
import subprocess, sys, time
from importlib import import_module
from pathlib import Path
from dflash_mlx.engine.stats import Stats
from dflash_mlx.types import Block
chat_view = import_module("dflash_mlx.cli.chat.view")
output = import_module("dflash_mlx.cli.terminal.output")
chat_view.FRAME_INTERVAL = 0
socket, folder, sizes = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split()
text = (folder / "document.md").read_text(encoding="utf-8")
out, stats = output.Output(), Stats()
for number in range(40):
    print("before", number)
with chat_view.make_chat_view(out) as view:
    for number, start in enumerate(range(0, len(text), 12)):
        block = Block((1, 2), drafted=2, accepted=1, text=text[start : start + 12])
        stats.record(block)
        view._next_frame_at = 0
        view.block(block, stats)
        if number % 9 == 8 and sizes:
            columns, rows = sizes.pop(0).split("x")
            subprocess.run(["tmux", "-S", socket, "resize-window", "-x", columns, "-y", rows])
            for _ in range(500):
                if output.stdout_size() == (int(columns), int(rows)):
                    break
                time.sleep(0.01)
            time.sleep(0.05)
(folder / "done").touch()
time.sleep(600)
"""


@pytest.mark.quick_every(3)
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize(
    "sizes",
    [
        "80x24",
        "80x24 40x24 80x24 60x12 100x40 50x20 40x12 120x30 60x15 30x20 80x24",
        "40x12 80x12 40x12 24x12 48x24 80x10 20x12",
    ],
)
def test_terminal_with_reflow(tmp_path, sizes):
    """tmux breaks lines anew when the window changes, as most terminals do but pyte and xterm.

    The window is full before, as it is in a chat: from an empty one tmux moves rows out at the
    top for each row that it breaks, and what has left the screen cannot be erased.
    """
    first, *others = sizes.split()
    columns, rows = first.split("x")
    folder = tempfile.TemporaryDirectory(dir="/tmp")  # a socket's path has to be short
    socket = f"{folder.name}/tmux"
    tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
    (tmp_path / "document.md").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "play.py").write_text(SCRIPT, encoding="utf-8")
    arguments = [sys.executable, tmp_path / "play.py", socket, tmp_path, " ".join(others)]
    command = shlex.join(map(str, arguments)) + f" 2> {tmp_path / 'errors'}"
    environment = os.environ | {"LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(
        [*tmux, "-u", "new-session", "-d", "-x", columns, "-y", rows, command],
        check=True,
        env=environment,
    )
    try:
        for _ in range(600):
            if (tmp_path / "done").exists():
                break
            time.sleep(0.1)
        errors = tmp_path / "errors"
        assert (tmp_path / "done").exists(), errors.read_text() if errors.exists() else "no start"
        time.sleep(0.2)
        captured = subprocess.run(
            [*tmux, "capture-pane", "-p", "-J", "-S", "-"], capture_output=True, check=True
        )
        text = captured.stdout.decode()
        assert faults(text) == {}
        assert text.startswith("".join(f"before {number}\n" for number in range(40)))
        assert len(re.findall("step [01][0-9]", text)) == 12
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
        folder.cleanup()
