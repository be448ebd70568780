"""Files in prompts: what is taken, what is refused, how it stands there, `@path` and `/read`."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.errors import UsageError

attachments = import_module("dflash_mlx.cli.prompt")
commands: Any = import_module("dflash_mlx.cli.chat.commands")
files = import_module("dflash_mlx.cli.chat.attachments")
read, complete = attachments.read_attachments, attachments.complete_path


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    for name, data in {
        "notes.md": b"some `code`\n\n```py\n1\n```\n",
        "src/a.py": b"a = 1\n",
        "src/deep/b.py": b"\xef\xbb\xbfb = 2",
        "src/picture.png": b"\x89PNG\0\0",
        "src/latin.txt": b"caf\xe9",
        "src/.hidden": b"no",
        "src/__pycache__/a.pyc": b"no",
        "with space.txt": b"spaced\n",
        "[odd].txt": b"odd\n",
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (folder / "empty").mkdir()
    os.mkfifo(folder / "src/pipe")  # reading it would wait for ever
    monkeypatch.chdir(folder)
    return folder


def test_what_is_taken(tree: Path) -> None:
    found = read(["notes.md", "src", "src/*.py", "[odd].txt"])
    assert [file.name for file in found.files] == [
        "notes.md",
        "src/a.py",
        "src/deep/b.py",
        "[odd].txt",
    ]
    assert found.skipped == 2
    assert found.summary == "4 files · 37 bytes · 2 not text, left out"
    assert [file.name for file in read(["**/*.py"]).files] == ["src/a.py", "src/deep/b.py"]
    assert read(["src/deep/b.py"]).text == "src/deep/b.py:\n\n```py\nb = 2\n```"
    assert read([str(tree / "notes.md")]).text.count("````") == 2  # longer than the one inside


def test_an_empty_file_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was sent as if it were not there."""
    monkeypatch.setattr("sys.stdin", None)
    Path("nothing.md").write_text(" \n")
    with pytest.raises(UsageError, match=r"the file 'nothing\.md' is empty"):
        attachments.read_prompt("What is this?", ["nothing.md"])
    with pytest.raises(UsageError, match=r"the file 'nothing\.md' is empty"):
        attachments.read_prompt("What is this?", ["src", "nothing.md"])
    for number in range(3):
        Path(f"src/empty{number}.py").touch()
    assert "empty0.py" in attachments.read_prompt("What is this?", ["src"])  # nobody named it
    assert "empty: nothing.md" in read(["src/a.py", "nothing.md"]).summary
    assert read(["nothing.md"]).summary == "nothing.md · 1 byte"


def test_files_come_out_of_a_prompt_again(tree: Path) -> None:
    """What a chat shows of a prompt that was sent: its text, and its files as one line."""
    found = read(["notes.md", "src/a.py", "[odd].txt"])
    text, files = attachments.split_attached(f"Read:\n\nthis:\n\n```py\n1\n```?\n\n{found.text}")
    assert text == "Read:\n\nthis:\n\n```py\n1\n```?"
    assert [file.text for file in files.files] == [file.text for file in found.files]
    assert files.summary == found.summary == "3 files · 32 bytes"
    for prompt in ("hi", "a:\n\n```\nb\n```", f"{found.text}\n\nand then"):
        assert attachments.split_attached(prompt) == (prompt, attachments.Attachments())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.md", "No such file"),
        ("src/picture.png", "it is not text"),
        ("src/latin.txt", "not UTF-8 text"),
        ("*.rs", "no file matches '*.rs'"),
        ("empty", "the folder 'empty' has no files"),
        ("src/*.png", "none of these files is text"),
        ("/dev/zero", "more than 2.0 MB"),
    ],
)
def test_what_is_refused(tree: Path, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("*", r"\*")):
        read([name])


def test_limits(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in (("MAX_FILES", 1), ("MAX_BYTES", 8)):
        with monkeypatch.context() as patch:
            patch.setattr(attachments, limit, value)
            with pytest.raises(UsageError, match="'src' is too much"):
                read(["src"])
    monkeypatch.setattr(attachments, "MAX_ENTRIES", 3)
    with pytest.raises(UsageError, match="the folder 'src' has more than 3 files"):
        read(["src"])


def test_mentions(tree: Path) -> None:
    """Only what is there: addresses, decorators and names of people stay text."""
    text = 'see @notes.md, (no@notes.md) @nobody, @"with space.txt" and @src/*.py? @ @[odd].txt!'
    assert files.mentioned_files(text) == ["notes.md", "with space.txt", "src/*.py", "[odd].txt"]
    assert files.missing_files(f"{text} @nobody @note.md, @src/c.py? @src @src/c.py") == [
        "note.md",
        "src/c.py",
    ]


def test_completion_of_paths(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("s") == ["src/"]
    shown = ("__pycache__/", "a.py", "deep/", "latin.txt", "picture.png", "pipe")
    assert complete("src/") == [f"src/{name}" for name in shown]
    assert complete("src/.") == ["src/.hidden"]
    assert complete(f"{tree}/no") == [f"{tree}/notes.md"]
    assert complete("nowhere/") == []
    for typed, offered in (("Read @not", "@notes.md"), ("/read not", "notes.md")):
        assert commands.complete(None, typed) == [(offered, "")]
    monkeypatch.setenv("HOME", str(tree))
    assert complete("~/no") == ["~/notes.md"]


def test_generate_takes_several_files(tree: Path, dflash, ask) -> None:
    """One is the prompt as it is, as ever; several have names and fences."""
    both = f"What?\n\n{read(['src/a.py', 'with space.txt']).text}"
    wanted = ask(both, "--max-tokens", "4")["tokens"]
    arguments = ["What?", "-f", "src/a.py", "-f", "with space.txt", "--max-tokens", "4"]
    assert ask(*arguments)["tokens"] == wanted
    assert (
        ask("-f", "src/a.py", "--max-tokens", "4")["usage"]
        == ask("a = 1", "--max-tokens", "4")["usage"]
    )
    refused = dflash("What?", "-f", "src/a.py", "-f", "src/picture.png")
    assert (refused.exit_code, "it is not text" in refused.stderr) == (2, True)
