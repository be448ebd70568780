"""Saved chats: their titles, `dflash chats`, going on with the last one, its end on the screen."""

import json
import os
import re
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import typer
from golden_pair import PAIR
from rich.cells import cell_len
from typer.testing import CliRunner, Result

import dflash_mlx

chat_file = import_module("dflash_mlx.cli.chat.chat_file")
messages = import_module("dflash_mlx.cli.chat.messages")
transcript = import_module("dflash_mlx.cli.chat.transcript")
Chat, Turn = transcript.Chat, transcript.Turn

SKY = Turn("Why is the\nsky blue?", "Because **short** waves scatter.")
TEA = Turn("And tea?", "Tannins, not scattering.", finish_reason="interrupted")


@pytest.fixture
def chats(cli_app: typer.Typer) -> Callable[..., Result]:
    """Run `dflash chats` through pipes, with three chats saved, one of them damaged."""
    for age, (name, chat) in enumerate(
        [
            ("colours", Chat((SKY, TEA), "Be brief.", 0, "owner/model", "owner/drafter")),
            ("why-is-the-sky-blue", Chat((SKY,))),
            ("mended", Chat()),
        ]
    ):
        path = transcript.save(name, chat)
        saved = 1e9 - age * 86400
        if name == "mended":
            path.write_text("{")
        os.utime(path, (saved, saved))
    return lambda *args, **more: CliRunner().invoke(cli_app, ["chats", *args], **more)


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("Why is the\nsky blue?", "why-is-the-sky-blue"),
        ("../../etc/passwd", "etc-passwd"),
        ("Übersetze: 漢字 ins Deutsche", "übersetze-漢字-ins-deutsche"),
        ("What is @a.md?\n\na.md:\n\n```md\nMilk\n```", "what-is-a-md"),
        ("x" * 300, "x" * 40),
        ("漢" * 300, "漢" * 40),
        ("a word more than there is space for in here", "a-word-more-than-there-is-space-for-in"),
    ],
)  # fmt: skip
def test_titles(prompt: str, title: str) -> None:
    """The first words of the first prompt, always a file name, never used twice."""
    chat = Chat((Turn(prompt, "Yes."),))
    names = []
    for _ in range(3):
        file = chat_file.ChatFile()
        file.save(chat)
        names.append(file.name)
    assert names == [title, f"{title}-2", f"{title}-3"]


def test_a_prompt_without_words_has_the_date() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", chat_file.title(Chat((Turn("?!", ""),))))


def test_list(chats: Callable[..., Result]) -> None:
    """Through a pipe: tabs. The damaged one stands there as what it is."""
    rows = [line.split("\t") for line in chats("list").stdout.splitlines()]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("colours", "2 turns", "Why is the sky blue?"),
        ("why-is-the-sky-blue", "1 turn", "Why is the sky blue?"),
        ("mended", "–", "(damaged)"),
    ]
    first, _, damaged = json.loads(chats("list", "--json").stdout)
    assert first == {
        "name": "colours",
        "saved": 1_000_000_000,
        "turns": 2,
        "model": "owner/model",
        "draft": "owner/drafter",
        "first_prompt": "Why is the sky blue?",
    }
    assert damaged["turns"] is None


def test_a_table_of_wide_names_stays_in_line() -> None:
    """Characters of two columns: the cells are padded by columns, and no line wraps."""
    table = import_module("dflash_mlx.cli.chats").table
    saved_chat = import_module("dflash_mlx.cli.chats").SavedChat
    prompts = (
        "なぜ空は青いのですか、簡単に説明してください",
        "Why is the sky blue, in short words?",
    )
    rows = [
        saved_chat(chat_file.title(chat), time.time(), chat)
        for chat in (Chat((Turn(prompt, "Yes."),)) for prompt in prompts)
    ]
    lines = table(rows, 80)
    assert max(map(cell_len, lines)) <= 80
    assert len({cell_len(line.partition("just now")[0]) for line in lines}) == 1


def test_the_shell_completes_names(
    chats: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, cli_app: typer.Typer
) -> None:
    for typed in ("dflash chats show why", "dflash chats rm why", "dflash chat --resume why"):
        monkeypatch.setenv("_DFLASH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        done = CliRunner().invoke(cli_app, [], prog_name="dflash")
        assert done.stdout.split() == ["why-is-the-sky-blue"]


def test_show_and_export(chats: Callable[..., Result], tmp_path: Path) -> None:
    wanted = transcript.to_markdown(transcript.load("colours"))
    assert chats("show").stdout == wanted
    assert chats("show", "why-is-the-sky-blue").stdout != wanted
    document = json.loads(chats("show", "colours", "--json").stdout)
    assert [turn["answer"] for turn in document["turns"]] == [SKY.answer, TEA.answer]
    assert document["system"] == "Be brief."
    file = tmp_path / "chat.md"
    assert chats("export", "colours", str(file)).exit_code == 0
    assert file.read_text() == wanted
    file.write_text("mine")
    assert chats("export", "colours", str(file)).exit_code == 1
    assert file.read_text() == "mine"


def test_search(chats: Callable[..., Result]) -> None:
    found = chats("search", "SHORT", "sky")
    assert found.stdout == (
        "colours  1\n    Why is the sky blue? Because **short** waves scatter.\n"
        "why-is-the-sky-blue  1\n    Why is the sky blue? Because **short** waves scatter.\n"
    )
    assert chats("search", "tannins").stdout.startswith("colours  2\n")
    nothing = chats("search", "tannins", "sky")
    assert (nothing.exit_code, nothing.stdout) == (1, "")


def test_remove(chats: Callable[..., Result]) -> None:
    assert chats("rm", "colours").exit_code == 2  # nobody to ask
    assert chats("rm", "colours", "nowhere", "--yes").exit_code == 1
    assert chats("rm", "../colours", "--yes").exit_code == 2
    assert transcript.chat_names() == ["colours", "why-is-the-sky-blue", "mended"]
    assert chats("rm", "colours", "mended", "--yes").exit_code == 0
    assert transcript.chat_names() == ["why-is-the-sky-blue"]
    assert chats("rm", "--all", "-y").exit_code == 0
    assert transcript.chat_names() == []
    assert chats("show").exit_code == 2
    assert (chats("list").exit_code, chats("list").stdout) == (0, "")


def test_generate_goes_on(cli_app: typer.Typer) -> None:
    """`-c`: the last chat's pair, system prompt and turns; the new turn is saved with them."""

    def generate(*words: str) -> Result:
        return CliRunner().invoke(cli_app, ["generate", "-c", *words])

    assert generate("hi").exit_code == 1  # there is none
    earlier = Chat((Turn("hi", "ho"),), "Be brief.", 0, PAIR[1], PAIR[3])
    transcript.save("talk", earlier)
    done = generate("and now?", "--max-tokens", "16")
    pair = dflash_mlx.load(PAIR[1], PAIR[3])
    sent = messages.chat_messages(earlier, "and now?")
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    answer = dflash_mlx.generate(pair, sent, max_tokens=16).text
    assert done.stdout.rstrip("\n") == answer.rstrip("\n")
    chat = transcript.load("talk")
    assert [(turn.prompt, turn.answer) for turn in chat.turns] == [
        ("hi", "ho"),
        ("and now?", answer.strip("\n")),
    ]
    assert (chat.system, chat.model) == ("Be brief.", PAIR[1])
    assert generate("x", "--raw").exit_code == 2
    assert generate("x", "--compare").exit_code == 2
