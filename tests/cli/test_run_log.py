"""`--log FILE`: every answer's numbers, every error, and no word that was typed or said."""

import json
import stat
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from golden_pair import PAIR
from tool_chat import HERE, ToolChat, tool_chats
from typer.testing import Result

run_log = import_module("dflash_mlx.cli.report")

SECRET = "winter finds Zanzibar"


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ToolChat]]:
    with tool_chats(monkeypatch) as begin:
        yield begin


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_numbers_and_no_words(run: Callable[..., Result], tmp_path: Path, command: str) -> None:
    """An answer's rounds add up to what `--json` says; with --log-text its words are there."""
    path = tmp_path / "log"
    flags = (*PAIR, "--max-tokens", "9", "--log", str(path), "-s", f"{SECRET}?")
    assert run(command, *flags, SECRET).exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    start, pair, answer, end = read(path)
    assert [one["type"] for one in (start, pair, answer, end)] == ["start", "pair", "answer", "end"]
    assert (start["command"], set(start["versions"])) == (
        command,
        {"dflash", "mlx", "mlx_lm", "python"},
    )
    assert (pair["model"], pair["mode"], pair["max_tokens"]) == (PAIR[1], "dflash", 9)
    usage, found = answer["usage"], answer["speculation"]
    columns = [sum(column) for column in zip(*answer["rounds"], strict=True)]
    assert columns[1:] == [usage["generated"], found["drafted"], found["accepted"]]
    seconds = [one[0] for one in answer["rounds"]]
    assert seconds == sorted(seconds)
    assert end["code"] == 0
    written = path.read_text("utf-8")
    assert not any(word in written for word in SECRET.split())
    assert not {"text", "tokens", "reasoning", "prompt"} & answer.keys()
    assert run(command, *flags, "--log-text", SECRET).exit_code == 0  # is added
    assert len(read(path)) == 8
    told = read(path)[6]
    assert told["prompt"] == SECRET
    assert len(told["tokens"]) == usage["generated"]


def test_errors_and_exits(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends a run is in it: a wrong model, and a fault with the place where it arose."""
    path = tmp_path / "log"
    assert run("generate", "hi", "-m", "nope", "--log", str(path)).exit_code == 1
    error, end = read(path)[-2:]
    assert error["message"].startswith("there is no ")
    assert (end["type"], end["code"]) == ("end", 1)

    def fault(*args: Any) -> None:
        raise RuntimeError(f"it is {SECRET}")

    monkeypatch.setattr("dflash_mlx.cli.backend.open.load_pair", fault)
    assert run("generate", SECRET, *PAIR, "--log", str(path)).exit_code == 1
    error, end = read(path)[-2:]
    assert error["message"] == "RuntimeError: it is … … …"
    assert error["frames"][-1].endswith(" fault")
    assert end["code"] == 1


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_log_that_cannot_be(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It is told before a model is loaded; a disk that is full later ends only the log."""
    done = run(command, "hi", *PAIR, "--max-tokens", "2", "--log", "/dev/full")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("the log ends here: it cannot be written") == 1
    monkeypatch.setattr("dflash_mlx.cli.backend.open.load_pair", lambda *args: 1 / 0)
    done = run(command, "hi", *PAIR, "--log", str(tmp_path / "none" / "log"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"the log '{tmp_path}/none/log' cannot be written (No such file" in done.stderr
    assert run(command, "hi", *PAIR, "--log-text").exit_code == 2


def test_a_session(chat: Callable[..., ToolChat], tmp_path: Path) -> None:
    """Each step, call and error of a chat, without a word; with words if that is asked for."""

    def log_of(*, with_text: bool) -> tuple[str, list[dict[str, Any]]]:
        path = tmp_path / f"log {with_text}"
        options = run_log.LogOptions(log=path, log_text=with_text)
        session = chat(HERE, answers=["y"])
        with options.open("chat", lambda text: None) as log:
            session.talk.log = session.talk.tools.log = log
            session.talk.out.on_error = log.error
            session.type("weather Zanzibar")
            session.type("/Zanzibar")
            session.type("/zanzibar")
            session.type("/load Zanzibar")
        return path.read_text("utf-8"), read(path)

    text, lines = log_of(with_text=False)
    assert "anzibar" not in text
    kinds = [line["type"] for line in lines]
    assert kinds == ["start", "answer", "call", "answer", "answer", "error", "error", "end"]
    assert [line["calls"] for line in lines if line["type"] == "answer"] == [1, 0, 0]
    call = lines[2]
    assert (call["tool"], call["state"]) == ("weather", "done")
    messages = [line["message"] for line in lines if line["type"] == "error"]
    assert messages == [
        "unknown command …. /help lists the commands.",
        "there is no saved chat '…'.",
    ]
    text, lines = log_of(with_text=True)
    assert text.count("anzibar") > 5
    assert json.loads(lines[2]["arguments"]) == {"city": "Zanzibar"}
