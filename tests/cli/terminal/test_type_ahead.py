"""What is typed while nothing is asked for: it shows, and each Enter is a message of its own."""

import json
import random
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from terminal import NUMBERS, ChatTerminal

line_editor = import_module("dflash_mlx.cli.terminal.line_editor")
output = import_module("dflash_mlx.cli.terminal.output")
spinner = import_module("dflash_mlx.cli.terminal.spinner")
type_ahead = import_module("dflash_mlx.cli.terminal.keys")

SLOW = {"says": "Fine.\n\nAnd well.\n\n" + "so " * 30 + "\n", "piece": 4, "sleep": 0.1}
CODES = re.compile(r"\x1b\[([0-9;]*)m")
PASTE = "\x1b[200~{}\x1b[201~"


def fed(*parts: str) -> Any:
    typed = type_ahead.TypeAhead()
    for part in parts:
        typed.feed(part)
    return typed


# Keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "messages", "draft"),
    [
        ("one\rtwo\rthr", ["one", "two"], "thr"),
        ("\r \rone\r", [" one"], ""),
        (PASTE.format("a\rb\r\nc"), [], "a\nb\nc"),
        ("x " + PASTE.format("a\rb") + " y\rz", ["x a\nb y"], "z"),
        ("one\rtwo\r\x1b[A!", ["one"], "two!"),
        ("one\rmine\x1b[A", ["one"], "mine"),
        ("one\r\x1bOA\x15\x1b[A", [], ""),
        ("many words here\x17\x7f\x7f", [], "many word"),
        ("line\x1b\rline\nline\x1b[13;2uline\x1b[27;2;13~", [], "line\nline\nline\nline\n"),
        ("one\\\rtwo\r", ["one\ntwo"], ""),
        ('"""one\rtwo"""\r', ['"""one\ntwo"""'], ""),
        ("\x1b[Ba\x1b[1;5Cb\x1b[3~c\x01d\te\x1b[24;80R", [], "abcde"),
        ("ähnlich 漢字 \U0001f600\x7f\r", ["ähnlich 漢字 "], ""),
    ],
)
def test_keys(keys: str, messages: list[str], draft: str) -> None:
    """The same, however the bytes come: at once or one by one."""
    for typed in (fed(keys), fed(*keys)):
        assert (list(typed.messages), typed.draft) == (messages, draft)


def test_a_lone_escape_is_no_beginning() -> None:
    """What waits for more is let go when nothing more comes; a paste waits on."""
    typed = fed("a\x1b")
    assert typed.waits
    typed.feed("", complete=True)
    typed.feed("b")
    assert typed.draft == "ab"
    typed.feed("\x1b[200~c")
    typed.feed("", complete=True)
    assert typed.in_paste
    typed.feed("d\x1b[201~")
    assert typed.draft == "abcd"


def test_order_of_what_is_handed_out() -> None:
    """Messages first, one by one; then the draft. Held ones are for the prompt."""
    typed = fed("one\rtwo\rthree\rdraft")
    assert typed.next_message() == "one"
    assert typed.hold() == 2
    assert typed.next_message() is None
    assert [typed.take_draft() for _ in range(4)] == ["two", "three", "draft", ""]
    assert not typed.held
    typed.feed("four\r")
    assert typed.next_message() == "four"
    assert typed.next_message() is None
    typed.feed("\x04")
    assert typed.leaves


@pytest.mark.parametrize("columns", [79, 39, 12])
def test_lines_fit(columns: int) -> None:
    """No more rows and columns than there are, whatever was typed; the last of it can be seen."""
    typed = fed(
        "one\r", "wide 漢字 " * 20 + "\r", "a\x1b\rb\r", "last\r", "draft 漢字 " * 20 + "end"
    )
    for rows in (1, 2, 3, 9):
        lines = typed.lines(columns, rows)
        plain = [re.sub(r"\x1b\[\d*m", "", line) for line in lines]
        assert len(lines) == min(rows, 5)
        assert all(type_ahead.truncate(line, columns) == line for line in plain)
        assert plain[-1].endswith("end█")
        assert all(line.startswith("\x1b[2m") and line.endswith("\x1b[0m") for line in lines)
        if rows == 3 and columns > 20:
            assert plain[0] == "  queued  3 more, and"
            assert plain[1].strip() == "queued  last"


def test_what_is_typed_shows_below_a_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download takes long: what is typed meanwhile is seen."""
    monkeypatch.setattr(spinner, "stderr_columns", lambda: 80)
    out = output.Output()
    typed = fed("one\rtw")
    out.footer = typed.lines
    lines = [str(line) for line in spinner.make_progress(out, "bytes").get_renderables()][1:]
    assert lines == ["  queued  one", "› tw█"]


def test_what_is_typed_shows_beside_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/compare has one line that moves: its end is what was typed."""
    monkeypatch.setattr(output, "stderr_columns", lambda: 30)
    out = output.Output()
    out.stderr_live = True
    out.footer = fed("漢 and more of it").lines
    out.status("12 tok · 100.0 tok/s · τ 1.00")
    shown = capsys.readouterr().err
    assert shown == "12 tok · 100.0  › more of it█"


def test_quotes_and_backslashes() -> None:
    assert type_ahead.continued("one") is None
    assert type_ahead.continued("one\\") == "one\n"
    assert type_ahead.continued('"""one') == '"""one\n'
    assert type_ahead.continued('"""one\n"""') is None
    assert type_ahead.unquoted('"""one\n"""') == "one"
    assert type_ahead.unquoted('"""\none\n"""\n') == "one"
    assert type_ahead.unquoted('say """one"""') == 'say """one"""'


# In a terminal ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatTerminal]:
    terminal = ChatTerminal(tmp_path_factory.mktemp("chat"))
    terminal._write(b"typed early")
    terminal.prompted("typed early")
    terminal.send("\x03")
    terminal.prompted()
    yield terminal
    terminal.close()


@pytest.fixture
def chat(shared: ChatTerminal) -> ChatTerminal:
    shared.answers(**SLOW)
    shared.resize(80, 24)
    shared.command("/clear", "new conversation")
    return shared


def prompts(chat: ChatTerminal) -> list[str]:
    files = chat.script.parent.glob("data/dflash/chats/*.json")
    last = max(files, key=lambda path: path.stat().st_mtime_ns)
    return [turn["prompt"] for turn in json.loads(last.read_text())["turns"]]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (40, 12), (120, 40)])
def test_each_enter_is_a_message(chat: ChatTerminal, size: tuple[int, int]) -> None:
    """Lines and commands were one draft before. Up takes the last one back into the draft."""
    chat.resize(*size)
    chat.send("first\r")
    chat.wait_for(r"\d+ tok · ")
    chat._write("sécond\r/set\rthird\rwron".encode())
    chat.wait_for("› wron█")
    waiting = ["  queued  sécond", "  queued  /set"] if size[1] > 12 else ["  queued  2 more, and"]
    assert chat.screen_text().splitlines()[-len(waiting) - 2 :] == [
        *waiting,
        "  queued  third",
        "› wron█",
    ]
    chat._write(b"\x15\x1b[A, changed")
    chat.wait_for("› third, changed█")
    chat.answers(says="Fine.\n")
    chat.wait_for(NUMBERS)
    chat.wait_for(r"› sécond[\s\S]*" + NUMBERS + r"[\s\S]*› /set[\s\S]*tree-budget")
    chat.prompted("third, changed")
    text = chat.screen_text()
    assert "queued" not in text
    assert "█" not in text
    assert max(map(len, text.splitlines()[-size[1] :])) <= size[0]
    chat.send("\r")
    chat.wait_for(NUMBERS)
    chat.prompted()
    assert prompts(chat) == ["first", "sécond", "third, changed"]
    chat.send("\x1b[A\x1b[A\x1b[A")
    chat.prompted("sécond")  # the history has them, too
    chat.send("\x03")


@pytest.mark.slow
def test_whenever_it_is_typed(chat: ChatTerminal) -> None:
    """Keys go from one reader to another at every prompt: none is lost, doubled or torn."""
    chat.answers(says="Fine, so it is.\n", piece=5, sleep=0.01)
    drawn = random.Random(4)
    wanted = [f"m{number} ü漢字" + "\nsecond" * (number % 3 == 0) for number in range(15)]
    for text in wanted:
        data = PASTE.format(text.replace("\n", "\r")) + "\r"
        data = (data if "\n" in text else text + "\r").encode()
        while data:
            size = drawn.choice([1, 3, 10, 100])
            chat._write(data[:size])
            data = data[size:]
            chat.pump(drawn.random() * drawn.choice([0.01, 0.02]))
        chat.pump(drawn.random() * drawn.choice([0.01, 0.2]))
    chat.wait_until(lambda: chat.screen_text().count("Fine, so it is.") >= 15, "all answered")
    chat.prompted()
    assert prompts(chat) == wanted


@pytest.mark.slow
def test_lines_at_the_prompt(chat: ChatTerminal) -> None:
    """Backslash-Enter, Shift-Enter where it is told, Alt-Enter, Ctrl-J, and a block in quotes."""
    chat.answers(says="Fine.\n")
    chat.send("one\\\rtwo\x1b[13;2uthree\x1b[27;2;13~four\x1b\rfive\nsix")
    chat.wait_until(lambda: chat.cursor_line() == "  six", "six lines")
    chat.send("\r")
    chat.wait_for(NUMBERS)
    chat.prompted()
    chat.send('"""\ra\r\rb\r')
    chat.settle()
    chat.send('"""\r')
    chat.wait_for(NUMBERS)
    chat.prompted()
    assert prompts(chat) == ["one\ntwo\nthree\nfour\nfive\nsix", "a\n\nb"]


@pytest.mark.slow
def test_leaving_ahead(tmp_path: Path) -> None:
    """Ctrl-D in an answer leaves after it, and after what was sent before; without colours."""
    chat = ChatTerminal(tmp_path, env={"NO_COLOR": "1"})
    try:
        chat.prompted()
        chat.answers(**SLOW)
        chat.send("first\r")
        chat.wait_for(r"\d+ tok · ")
        chat.answers(says="Fine.\n")
        chat._write(b"second\r\x04")
        chat.wait_for("queued  leave")
        chat.leaves(0)
        codes = {code for found in CODES.findall(chat.raw) for code in found.split(";")}
        assert codes <= {"", "0", "1", "2", "3", "4", "7", "9"}
        assert prompts(chat) == ["first", "second"]
    finally:
        chat.close()
