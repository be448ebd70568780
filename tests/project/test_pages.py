"""README and guide: each `dflash` command in their blocks is run, with small models.

DFLASH_PROGRAM names an installed program to run them with. A command that would download a model or
a suite has "(download)" behind it, one that asks a server "(another machine)": it is run offline,
and must fail for that reason alone.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import tool_talk
import typer
from golden_pair import GOLDEN
from typer.testing import CliRunner

import dflash_mlx
from dflash_mlx.hub.registry import find

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "examples/guide").glob("*.md"))]
# A program to run the commands with, in place of the code of this folder.
PROGRAM = os.environ.get("DFLASH_PROGRAM")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


LINES = [
    (page, line)
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
    if line.strip() and not line.startswith("#")
]
COMMANDS = [(page, line) for page, line in LINES if re.search(r"(^|\| )dflash ", line)]
DOWNLOAD = re.compile(r"#.*\((download|another machine)\)")
NOT_HERE = re.compile(
    r"is not on this machine|no terminal to ask|needs? the package|offline it cannot be downloaded|"
    r"the machine of http\S+ is not known|papers.jsonl. cannot be read"
)
# Scale only: how much is measured and trained.
SHORT = {"DFLASH_LIMIT": "1", "DFLASH_REPEATS": "1", "DFLASH_TEMPS": "0"}
SHORT_TRAINING = "--steps 1 --max-tokens 8 --block-size 4 --batch 2"
SMALL_DRAFTER = "--layers 1 --taps 2"  # which MTP heads do not have
FILES = {
    "notes.md": "Milk and bread.\n",
    "src/a.py": "a = 1\n",
    "order.json": '{"type": "object", "properties": {"teas": {"type": "integer"}}}',
    "prompts.jsonl": '"say 1"\n"say 2"\n"say 3"\n"say 4"\n',
}


@dataclass(frozen=True)
class Ended:
    exit_code: int
    stdout: str
    stderr: str


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
    config.write_text(blocks(ROOT / "examples/guide/presets.md", "toml")[0])
    return place


@pytest.fixture
def run(
    cli_app: typer.Typer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Ended]:
    """Run a line of a shell whose last command is ours: pipes and files at its ends as they are."""
    monkeypatch.chdir(folder)
    for name in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    for name, value in SHORT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dflash_mlx.serve.listening.run", lambda *_: None)  # it would not return
    monkeypatch.setattr("dflash_mlx.cli.serve.warm_up", lambda *_: None)
    monkeypatch.setenv("DFLASH_PORT", "0")
    if not list((folder / "data").glob("**/*.json")):  # chats are saved in terminals
        transcript = import_module("dflash_mlx.cli.chat.transcript")
        turn = transcript.Turn("Why is the sky blue?", "Short waves scatter.")
        transcript.save("why-is-the-sky-blue", transcript.Chat((turn,)))

    def one(line: str) -> Ended:
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
            words += [] if "mtp" in words else SMALL_DRAFTER.split()
        file = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if file else words
        result = run_installed(words, given) if PROGRAM else run_here(words, given)
        if file:
            (folder / file).write_text(result.stdout)
        return result

    def run_here(words: list[str], given: str) -> Ended:
        result = CliRunner().invoke(cli_app, words[1:], input=given)
        return Ended(result.exit_code, result.stdout, result.stderr)

    return one


def run_installed(words: list[str], given: str) -> Ended:
    """The program in a process of its own; a server is stopped by Ctrl-C once it answers."""
    assert PROGRAM is not None
    pipe = subprocess.PIPE
    command = [PROGRAM, *words[1:]]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        if words[1] == "serve" and "-m" not in words:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            port = next(
                found[1] for line in lines if (found := re.search(r"http://\S+:(\d+)", line))
            )
            with urlopen(f"http://127.0.0.1:{port}/health") as health:
                status = health.status
            process.send_signal(signal.SIGINT)
            process.communicate()
            return Ended(0 if status == 200 and process.returncode == 130 else 1, "", "")
        stdout, stderr = process.communicate(given)
    return Ended(process.returncode, stdout, stderr)


def unknown_machine(*names: Any, **how: Any) -> None:
    """No name is looked up."""
    raise socket.gaierror("unknown")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "line"), COMMANDS, ids=[f"{p.stem}: {c.partition('  ')[0]}" for p, c in COMMANDS]
)
def test_a_command(
    page: Path, line: str, run: Callable[[str], Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the pages, all in one folder: files that one writes stay for the next."""
    download = DOWNLOAD.search(line)
    if download:
        monkeypatch.setenv("DFLASH_OFFLINE", "1")
        monkeypatch.setenv("DFLASH_FORCE", "1")  # whatever the memory here
        if download[1] != "download":
            monkeypatch.setattr(socket, "getaddrinfo", unknown_machine)
    result = run(line)
    if download:
        assert result.exit_code in (1, 2), result
        assert NOT_HERE.search(result.stderr), result.stderr
    else:
        assert result.exit_code == 0, result
        silent = re.search(r"serve|train|doctor|chats rm|launch|--batch", line)
        assert result.stdout.strip() or silent, result


def test_what_the_commands_are() -> None:
    """Every command of the program is in the guide; other lines are programs that set things up."""
    names = {line.split("dflash ")[1].split()[0] for _, line in COMMANDS}
    app = import_module("dflash_mlx.cli.app").app
    assert names == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    others = [
        line for page, line in LINES if page.name == "README.md" and (page, line) not in COMMANDS
    ]
    assert {line.split()[0] for line in others} == {"make", "uv", ".venv/bin/dflash"}
    for line in others:
        if line.startswith("make"):
            command = ["make", "-n", *shlex.split(line, comments=True)[1:]]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            assert ".venv/bin/dflash chat" in done.stdout  # where it is


def test_the_readme_is_read_in_one_sitting() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert len(text.split()) <= 2800


def test_links_lead_somewhere() -> None:
    """Each relative link of README and guide is a file, and each page of the guide has a link."""
    linked = set()
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
                linked.add((page.parent / target).resolve())
    assert set(PAGES[1:]) <= linked


def test_models_that_are_downloaded_are_small() -> None:
    """The first one was 9 GB, of 16 bits."""
    for _, line in COMMANDS:
        for name in re.findall(r"(?:-m|pull) ([\w.-]+/[\w.-]+)", line):
            if not name.startswith("./"):
                entry = find(name)
                assert entry is not None, line
                assert entry.quantised, line


def test_what_the_files_hold(folder: Path) -> None:
    """What the commands above wrote."""
    if not (folder / "sum.txt").exists():
        pytest.skip("the commands were not run")
    assert (folder / "sum.txt").read_text().endswith("25 plus 17 is 42.\n")
    assert json.loads((folder / "trained/config.json").read_text())["block_size"] == 4


@pytest.mark.parametrize(
    "page", ["README.md", "examples/guide/python.md", "examples/guide/structured.md"]
)
def test_the_python_of_a_page(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block runs by itself."""
    for block in blocks(ROOT / page, "python"):
        exec(compile(block, page, "exec"), {})
        assert capsys.readouterr().out.endswith("\n")


def test_every_public_name_has_an_example() -> None:
    """In a block of the page, which the test above runs."""
    code = "\n".join(blocks(ROOT / "examples/guide/python.md", "python"))
    for name in dflash_mlx.__all__:
        assert re.search(rf"\bdflash_mlx\.{name}\b", code), name


def test_the_python_of_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pair that calls tools."""
    here = {"command": sys.executable, "args": [str(ROOT / "tests" / "support" / "mcp_server.py")]}
    document = json.dumps({"mcpServers": {"here": here}})
    (tmp_path / "claude_desktop_config.json").write_text(document)
    monkeypatch.chdir(tmp_path)
    pair = tool_talk.talking_pair(rainy)
    monkeypatch.setattr(dflash_mlx, "load", lambda *names: pair)
    (block,) = blocks(ROOT / "examples/guide/mcp.md", "python")
    names: dict[str, Any] = {}
    exec(compile(block, "mcp.md", "exec"), names)
    assert names["answered"].text == "It says: rain"


def rainy(messages: list[dict[str, Any]]) -> str:
    """What a model says that asks for the weather whatever it is asked."""
    asked = [{"role": "user", "content": "weather Brno"}, *messages[1:]]
    return tool_talk.says(asked)
