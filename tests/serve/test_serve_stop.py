"""Ctrl-C and SIGTERM of a server, in this process."""

import os
import signal
import threading
import time
from importlib import import_module
from typing import Any

import httpx
import pytest
import typer
from serving import settings_of

from dflash_mlx.pair import Pair
from dflash_mlx.serve import access_log, app, listening

run_until_stopped = import_module("dflash_mlx.cli.serve").run_until_stopped
Output = import_module("dflash_mlx.cli.terminal.output").Output
STOPPED = "the server was stopped."
USER = {"messages": [{"role": "user", "content": "What is 12 plus 7?"}]}


def run_and_stop(
    server: app.Server,
    body: dict[str, Any],
    *,
    number: int = signal.SIGINT,
    path: str = "/v1/chat/completions",
    twice: bool = False,
) -> tuple[int, str]:
    """Serve a request, and get a signal as soon as it runs, or two; the exit code and the reply."""
    at = listening.listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{at[0].getsockname()[1]}{path}"
    replies: list[str] = []

    def ask() -> None:
        try:
            replies.append(httpx.post(url, json=body, timeout=30).text)
        except httpx.HTTPError as error:
            replies.append(str(error))

    def interrupt() -> None:
        while not server.models.admission.running:
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(os.getpid(), number)
        if twice:
            time.sleep(0.5)
            os.kill(os.getpid(), number)

    threads = [threading.Thread(target=work, daemon=True) for work in (ask, interrupt)]
    for thread in threads:
        thread.start()
    with pytest.raises(typer.Exit) as caught:
        run_until_stopped(server, at, Output())
    for thread in threads:
        thread.join()
    return caught.value.exit_code, replies[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_while_an_answer_runs(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    twice: bool,
) -> None:
    """Nothing was said for 10 seconds; then came tracebacks, and status 200 in the log."""
    monkeypatch.setattr(listening, "STOP_SECONDS", 60 if twice else 1)
    lines: list[str] = []
    server = app.Server(pair, settings_of("m", {}), access_log.AccessLog(lines.append))
    body = {**USER, "ignore_eos": True, "max_tokens": 1900, "stream": stream}
    began = time.monotonic()
    code, reply = run_and_stop(server, body, twice=twice)
    assert code == 130
    assert time.monotonic() - began < 10
    seconds = 60 if twice else 1
    told = f"stopping: running answers have {seconds} seconds to finish; Ctrl-C again ends them now"
    assert capsys.readouterr().err == told + "\n"
    assert not caplog.records
    (line,) = lines
    assert line.startswith("503 POST /v1/chat/completions")
    assert line.endswith(STOPPED)
    assert STOPPED in reply or (stream and twice)


ENDS = {
    "/v1/chat/completions": (USER, '"error": {', "data: [DONE]\n\n"),
    "/v1/completions": ({"prompt": "one two"}, '"error": {', "data: [DONE]\n\n"),
    "/v1/responses": ({"input": "one two"}, '"type": "error"', "\n\n"),
    "/v1/messages": (USER, '"type": "error"', "\n\n"),
}


@pytest.mark.parametrize("path", ENDS)
def test_sigterm_ends_streams_with_an_error(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(listening, "STOP_SECONDS", 2)
    server = app.Server(pair, settings_of("m", {}))
    prompt, error, end = ENDS[path]
    limit = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 1900}
    body = {**prompt, **limit, "ignore_eos": True, "stream": True}
    code, reply = run_and_stop(server, body, number=signal.SIGTERM, path=path)
    assert code == 143
    last = reply.removesuffix("data: [DONE]\n\n").rstrip().rpartition("\n\n")[2]
    assert STOPPED in last
    assert error in last
    assert reply.endswith(end)


def test_ctrl_c_of_an_idle_server(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    server = app.Server(pair, settings_of("m", {}))
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(typer.Exit):
        run_until_stopped(server, listening.listen("127.0.0.1", 0), Output())
    assert capsys.readouterr().err == ""
