"""mlx-lm's own server as the model of `generate` and `chat`: the way to a model of several Macs."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
import typer
from terminal import Terminal, environment
from typer.testing import CliRunner

from dflash_mlx.address import parse_address
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.remote.session import RemoteSession, connect

QUESTION = "What is 3 plus 4?"
ANSWER = "3 plus 4 is 7."
PATIENCE = 120.0  # seconds; only a failing test waits that long


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of `mlx_lm server` with the bundled target, as a process of its own."""
    hub = tmp_path / "hub"
    hub.mkdir()  # the server lists it, and fails without it
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = ["--model", str(bundled("target"))]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlx_lm", "server", *model, "--port", str(port)],
            env={**os.environ, "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}/health", process, tmp_path / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a server's first answer; fails with its output if it has ended."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    pytest.fail(f"the server does not answer: {log.read_text()[-3000:]}")


def test_a_chat_with_mlx_lms_server(url: str, cli_app: typer.Typer, tmp_path: Path) -> None:
    """Piece by piece, whole, as JSON, and two turns of a chat in a terminal."""
    session = RemoteSession(connect(parse_address(url)))
    blocks = list(session.stream([{"role": "user", "content": QUESTION}], max_tokens=60))
    assert len(blocks) > 5
    assert "".join(block.text for block in blocks).endswith(ANSWER)
    assert (blocks[-1].finish_reason, session.stats.generated) == ("stop", 20)

    run = CliRunner().invoke
    assert run(cli_app, ["generate", "-m", url, QUESTION]).stdout == f"{ANSWER}\n"
    report = json.loads(run(cli_app, ["generate", "-m", url, "--json", QUESTION]).stdout)
    assert (report["text"], report["finish_reason"]) == (ANSWER, "stop")

    start = [sys.executable, "-P", "-m", "dflash_mlx", "chat", "-m", f"{url}/v1"]
    chat = Terminal(start, environment(tmp_path))
    try:
        for question, answer in ((QUESTION, ANSWER), ("What is 12 plus 7?", "12 plus 7 is 19.")):
            chat.prompted()
            chat.send(f"{question}\r")
            chat.wait_for(answer)
            chat.wait_for(r"\d+ tokens · [\d.]+ tok/s")
        chat.prompted()
        chat.send("\x04")
        chat.leaves(0)
    finally:
        chat.close()
