"""A chat of ten turns with a pretrained model, in tmux as its users have it."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_models import MARKS, SMALLEST, TIE, installed, stock
from terminal import environment

pytestmark = [*MARKS, pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")]

PROMPTS = (
    "Hi! My name is Ada.",
    "What is 2 + 3?",
    "Name three red fruits.",
    "Name three red fruits again.",
    "Write a Python function that adds two numbers.",
    "Write the same function, but call it plus.",
    "Say good morning in French.",
    "And in German: größer oder kleiner?",
    "Translate into English: 図書館は九時に開きます。",
    "What is my name?",
)
LENGTH = 16  # tokens of an answer
Tmux = Callable[..., str]


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """Runs a command of a server of its own, in a large window."""
    folder = tempfile.TemporaryDirectory(dir="/tmp")  # a socket's path has to be short
    base = ["tmux", "-S", f"{folder.name}/tmux", "-f", "/dev/null", "-u"]
    variables = environment(tmp_path) | {"LC_ALL": "C.UTF-8", "DFLASH_MODE": "auto"}

    def run(*command: str) -> str:
        done = subprocess.run([*base, *command], capture_output=True, env=variables, check=True)
        return done.stdout.decode()

    yield run
    subprocess.run([*base, "kill-server"], check=False)
    folder.cleanup()


def wait_for(holds: Callable[[], Any], tmux: Tmux, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, tmux("capture-pane", "-p")
        time.sleep(0.2)


def turns(folder: Path) -> list[dict[str, Any]]:
    """Those of the only saved chat."""
    files = list(folder.glob("data/dflash/chats/*.json"))
    return json.loads(files[0].read_text())["turns"] if files else []


@pytest.mark.parametrize("model", [SMALLEST, "qwen2.5-coder-0.5b"])
def test_ten_turns(model: str, tmux: Tmux, tmp_path: Path) -> None:
    """All is shown, kept, and what stock mlx-lm holds for likeliest after the same chat."""
    folder = installed(model)
    chat = [sys.executable, "-m", "dflash_mlx", "chat", "-m", str(folder), "--temp", "0"]
    command = shlex.join([*chat, "--max-tokens", f"{LENGTH}", "--no-markdown"])
    tmux("new-session", "-d", "-x", "120", "-y", "50", f"{command}; sleep 600")
    tmux("set-option", "history-limit", "10000")

    def screen() -> str:
        return tmux("capture-pane", "-p", "-J", "-S", "-")

    for number, prompt in enumerate(PROMPTS):
        wait_for(lambda: screen().rstrip().endswith("›"), tmux)
        tmux("send-keys", "-l", prompt)
        tmux("send-keys", "Enter")
        wait_for(lambda many=number + 1: len(turns(tmp_path)) == many, tmux)
    wait_for(lambda: screen().rstrip().endswith("›"), tmux)
    shown, kept = words(screen()), turns(tmp_path)
    assert [turn["prompt"] for turn in kept] == list(PROMPTS)
    for turn in kept:
        _, found, shown = shown.partition(words(turn["prompt"] + turn["answer"]))
        assert found, f"{turn} is not shown in its order"
    with stock(folder) as ask:
        assert max(ask("behind", kept)) < TIE


def words(text: str) -> str:
    """Without white space, which ends of lines change."""
    return re.sub(r"\s", "", text)
