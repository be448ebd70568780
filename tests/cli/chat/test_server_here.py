"""A chat whose model a server of this machine has loaded."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from golden_pair import GOLDEN
from other_program import other_program
from serving import Served, serving
from terminal import Terminal, environment

from dflash_mlx.files.programs import other_programs

options = import_module("dflash_mlx.cli.options")
output = import_module("dflash_mlx.cli.terminal.output")
resolve = import_module("dflash_mlx.cli.resolve")
start = import_module("dflash_mlx.cli.chat.start")

TARGET = GOLDEN / "target"
FLAG, FILE = options.ValueSource.FLAG, options.ValueSource.FILE


@dataclass
class User:
    """Answers the question of a start; `asked` and `told` are what was asked and noted."""

    says: bool = True
    asked: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def confirm(self, question: str, *, default: bool, err: bool) -> bool:
        assert default
        assert err
        self.asked.append(question)
        return self.says

    def model(self, source: Any = FLAG, **given: Any) -> str | None:
        """The model of a chat with these options."""
        out = output.Output()
        out.note = self.told.append
        return start.offer_server(options_of(source, **given), out).model.model


def options_of(source: Any, **given: Any) -> Any:
    parameters = [SimpleNamespace(name=name) for name in given]
    context = SimpleNamespace(command=SimpleNamespace(params=parameters), meta={})
    return options.Options(context, dict.fromkeys(given, source)).changed(**given)


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> User:
    found = User()
    monkeypatch.setattr(start.typer, "confirm", found.confirm)
    return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny.golden_pair("qwen3_full"), names=("target",)) as found:
        yield found


def test_the_question(served: Served, user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Yes is the server's address with the model, no is the model."""
    monkeypatch.chdir(GOLDEN)
    with other_program(str(TARGET), 10**6, served.url):
        for name in (str(TARGET), "./target"):
            assert user.model(model=name) == f"{served.url}/v1#target"
        user.says = False
        assert user.model(model=str(TARGET)) == str(TARGET)
    question = f"dflash serve at 127.0.0.1:{served.port} has this model loaded. Use it?"
    assert user.asked == [question] * 3
    user.model(model=str(TARGET))
    assert len(user.asked) == 3  # it runs no more
    assert user.told == []


@pytest.mark.parametrize(
    "given",
    [
        {"model": None},
        {"model": "bundled"},
        {"model": "http://127.0.0.1:9/v1"},
        {"model": str(GOLDEN / "draft")},
        {"exact": True},
        {"draft": "lookup"},
        {"adapter": Path("here"), "source": FILE},
    ],
)
def test_nothing_is_asked(given: dict[str, Any], served: Served, user: User) -> None:
    """About another model, which an adapter makes of it, and with a flag that a server refuses."""
    with other_program(str(TARGET), 10**6, served.url):
        assert user.model(**{"model": str(TARGET), **given}) == given.get("model", str(TARGET))
        assert (user.asked, user.told) == ([], [])
        user.model(FILE, model=str(TARGET), force=True)  # options of the config file do not count
    assert len(user.asked) == 1


def test_a_server_that_does_not_answer(user: User) -> None:
    """Is noted, and the model is loaded here."""
    with other_program(str(TARGET), 10**6, "http://127.0.0.1:9"):
        assert user.model(model=str(TARGET)) == str(TARGET)
    assert user.asked == []
    (note,) = user.told
    assert "http://127.0.0.1:9" in note
    assert "cannot be reached" in note


class Server:
    """`dflash serve` with the golden target, in a process of its own."""

    def __init__(self, folder: Path, *more: str):
        command = [sys.executable, "-P", "-m", "dflash_mlx.cli", "serve", "-m", str(TARGET)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *more],
            env=environment(folder),
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> str:
        """Its address, without http://, when it is ready."""
        assert self.process.stderr is not None
        found = ""
        for line in self.process.stderr:
            if "browser" in line:
                found = line.split("http://")[1].strip()
            if "Ctrl-C stops" in line:
                return found
        raise AssertionError("the server has ended")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


def chat(folder: Path, *more: str) -> Terminal:
    command = [sys.executable, "-P", "-m", "dflash_mlx.cli", "chat", "-m", str(TARGET), *more]
    return Terminal(command, environment(folder), 80, 24)


def leave(terminal: Terminal) -> None:
    terminal.prompted()
    terminal.send("/exit\r")
    terminal.leaves(0)
    terminal.close()


def test_a_chat_beside_a_server(tmp_path: Path) -> None:
    """Yes connects to the server, no loads the model; with --quiet nothing is asked."""
    with Server(tmp_path) as address:
        yes = chat(tmp_path)
        yes.wait_for(rf"dflash serve at {address} has this model loaded")
        yes.send("\r")
        yes.wait_for(rf"target · dflash serve at http://{address}/v1")
        leave(yes)
        no = chat(tmp_path)
        no.wait_for(r"Use it\? \[Y/n\]")
        no.send("n\r")
        no.wait_for("loaded in")
        leave(no)
        quiet = chat(tmp_path, "--quiet")
        leave(quiet)
        assert "Use it" not in quiet.raw
    assert not [*(tmp_path / "cache" / "dflash" / "loaded").iterdir()]


def test_a_server_with_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not offered; its model is counted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Server(tmp_path, "--api-key", "secret"):
        (entry,) = other_programs()
    assert (entry.model, entry.address) == (str(TARGET.resolve()), "")
