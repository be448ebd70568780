"""The README: each `dflash` command in its blocks is run, with the bundled pair or a random one.

One that would download a model or a suite has "(download)" behind it, one that asks a server
"(another machine)": it is run offline, and must fail for that reason alone.
"""

import json
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tool_talk
import typer
from golden_pair import GOLDEN
from typer.testing import CliRunner, Result

import dflash_mlx
from dflash_mlx.hub.registry import find

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.S)
LINES = [line for block in BLOCKS for line in block.splitlines() if line.strip()]
COMMANDS = [line for line in LINES if re.search(r"(^|\| )dflash ", line)]
DOWNLOAD = re.compile(r"#.*\((download|another machine)\)")
NOT_HERE = re.compile(
    r"is not on this machine|no terminal to ask|needs the package|the Hub may not be asked|"
    r"the machine of http\S+ is not known"
)
# Scale only: how much is measured and trained.
SHORT = {"DFLASH_LIMIT": "1", "DFLASH_REPEATS": "1", "DFLASH_TEMPS": "0"}
SHORT_TRAINING = "--steps 1 --max-tokens 8 --layers 1 --block-size 4 --batch 2 --taps 2"
FILES = {
    "notes.md": "Milk and bread.\n",
    "src/a.py": "a = 1\n",
    "order.json": '{"type": "object", "properties": {"teas": {"type": "integer"}}}',
    "prompts.jsonl": '"say 1"\n"say 2"\n"say 3"\n"say 4"\n',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands run, one after another, with the files that they name."""
    place = tmp_path_factory.mktemp("readme")
    subprocess.run(["git", "init", "-q", place], check=True)
    for name, text in FILES.items():
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "add", "notes.md"], cwd=place, check=True)
    (place / "notes.md").write_text("Milk.\n")
    (place / "my-model").symlink_to(GOLDEN / "target")
    (place / "my-drafter").symlink_to(GOLDEN / "draft")
    config = place / "config/dflash/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(README.split("```toml\n")[1].split("```")[0])
    return place


@pytest.fixture
def run(
    cli_app: typer.Typer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Result]:
    """Run a line of a shell whose last command is ours: pipes and files at its ends as they are."""
    monkeypatch.chdir(folder)
    for name in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    for name, value in SHORT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dflash_mlx.serve.app.run", lambda *_: None)  # it would not return
    monkeypatch.setattr("dflash_mlx.cli.serve.warm_up", lambda *_: None)
    monkeypatch.setenv("DFLASH_PORT", "0")
    if not list((folder / "data").glob("**/*.json")):  # chats are saved in terminals
        transcript = import_module("dflash_mlx.cli.chat.transcript")
        turn = transcript.Turn("Why is the sky blue?", "Short waves scatter.")
        transcript.save("why-is-the-sky-blue", transcript.Chat((turn,)))

    def one(line: str) -> Result:
        *before, command = line.split(" | ")
        given = "Hello!\n"
        if before:
            given = subprocess.run(
                before[0], shell=True, check=True, capture_output=True, text=True
            ).stdout
            assert given
        words = shlex.split(command, comments=True)
        if words[1] == "train" and "--resume" not in words:
            words += SHORT_TRAINING.split()
        file = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if file else words
        result = CliRunner().invoke(cli_app, words[1:], input=given)
        if file:
            (folder / file).write_text(result.stdout)
        return result

    return one


def unknown_machine(*names: Any, **how: Any) -> None:
    """No name is looked up."""
    raise socket.gaierror("unknown")


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line.partition("  ")[0])
def test_a_command(
    line: str, run: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page, all in one folder: files that one writes are there for the next."""
    download = DOWNLOAD.search(line)
    if download:
        monkeypatch.setenv("DFLASH_OFFLINE", "1")
        monkeypatch.setenv("DFLASH_FORCE", "1")  # whatever the memory here
        if download[1] != "download":
            monkeypatch.setattr(socket, "getaddrinfo", unknown_machine)
    result = run(line)
    if download:
        assert result.exit_code in (1, 2), result.output
        assert NOT_HERE.search(result.stderr), result.stderr
    else:
        assert result.exit_code == 0, result.output
        silent = re.search(r"serve|train|doctor|chats rm", line)
        assert result.stdout.strip() or silent, result.output


def test_what_the_commands_are() -> None:
    """Each command of the program is there, and in other lines only programs that set it up."""
    assert len(COMMANDS) > 30
    names = {line.split("dflash ")[1].split()[0] for line in COMMANDS}
    app = import_module("dflash_mlx.cli.app").app
    assert names | {"cache", "launch"} == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    others = [line for line in LINES if line not in COMMANDS]
    assert {line.split()[0] for line in others} == {"make", "uv"}
    for line in others:
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            command = ["make", "-n", *words[1:]]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            assert "demo" not in words or ".venv/bin/dflash chat" in done.stdout  # where it is
        elif extra := re.search(r"\.\[(\w+)\]", line):
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            assert extra[1] in project["optional-dependencies"]


def test_models_that_are_downloaded_are_small() -> None:
    """The first one was 9 GB, of 16 bits."""
    for line in COMMANDS:
        for name in re.findall(r"(?:-m|pull) ([\w.-]+/[\w.-]+)", line):
            if not name.startswith("./"):
                entry = find(name)
                assert entry is not None, line
                assert entry.quantised, line


def test_what_the_files_hold(folder: Path) -> None:
    """What the commands above wrote."""
    if not (folder / "out.txt").exists():
        pytest.skip("the commands were not run")
    assert (folder / "out.txt").read_text().endswith("25 plus 17 is 42.\n")
    assert json.loads((folder / "trained/config.json").read_text())["block_size"] == 4


def test_the_python_of_the_readme(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, and prints what it says; what calls tools does so with a pair that can."""
    of_tools, first = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(first, "README.md", "exec"), {})
    wanted = dflash_mlx.generate(dflash_mlx.load(), "What is 25 plus 17?").text
    assert capsys.readouterr().out.startswith(wanted)
    here = {"command": sys.executable, "args": [str(ROOT / "tests" / "support" / "mcp_server.py")]}
    document = json.dumps({"mcpServers": {"here": here}})
    (tmp_path / "claude_desktop_config.json").write_text(document)
    monkeypatch.chdir(tmp_path)
    wetted: dict[str, Any] = {"pair": tool_talk.talking_pair(rainy)}
    exec(compile(of_tools, "README.md", "exec"), wetted)
    assert wetted["answered"].text == "It says: rain"


def rainy(messages: list[dict[str, Any]]) -> str:
    """What a model says that asks for the weather whatever it is asked."""
    asked = [{"role": "user", "content": "weather Brno"}, *messages[1:]]
    return tool_talk.says(asked)
