"""MCP servers in a chat: whole sessions as they look, what is kept, and what is asked about."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from golden_pair import PAIR
from paths import SUPPORT
from terminal import Terminal, environment
from tool_chat import HERE, SERVER, ToolChat, tool_chats
from tool_talk import says, talking_pair
from typer.testing import CliRunner

from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.tools import Call, ServerConfig, Step
from dflash_mlx.tools.functions import Tool

dialogue_module = import_module("dflash_mlx.cli.chat.dialogue")
loop = import_module("dflash_mlx.cli.chat.loop")
mcp_servers = import_module("dflash_mlx.cli.config_file")
messages = import_module("dflash_mlx.cli.chat.messages")
permissions = import_module("dflash_mlx.cli.chat.tools")
states = import_module("dflash_mlx.cli.chat.state")
transcript = import_module("dflash_mlx.cli.chat.transcript")
chat_file = import_module("dflash_mlx.cli.chat.chat_file")

QUESTION = "  run it? y once, s in this session, a always, n no › "


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ToolChat]]:
    with tool_chats(monkeypatch) as begin:
        yield begin


@pytest.fixture(params=["stdio", "http"])
def config(request: pytest.FixtureRequest) -> Iterator[ServerConfig]:
    if request.param == "stdio":
        yield HERE
        return
    program = [sys.executable, str(SERVER), "--http"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        yield ServerConfig("here", url=address, headers=(("X-Key", "secret"),))
        process.terminate()


FIRST_DAY = """\
› weather Brno

I look.
  › weather(city: "Brno") · here
  run it? y once, s in this session, a always, n no › What?
  run it? y once, s in this session, a always, n no › y
  │ Brno 0:00 rain
  │ Brno 1:00 rain
  │ Brno 2:00 rain
  │ Brno 3:00 rain
  │ … 20 more lines

It says: Brno 0:00 rain

› weather

I look.
  › weather() · here
  run it? y once, s in this session, a always, n no › s
  │ error: no city given

It says: error: no city given

› weather Ulm

I look.
  › weather(city: "Ulm") · here
  │ Ulm 0:00 rain
  │ Ulm 1:00 rain
  │ Ulm 2:00 rain
  │ Ulm 3:00 rain
  │ … 20 more lines

It says: Ulm 0:00 rain

› sleep

  › sleep() · here
  run it? y once, s in this session, a always, n no › n
  │ refused by the user

It says: refused by the user

› hello

Fine.

› /history 2
› sleep

  › sleep()
  │ refused by the user

It says: refused by the user

› hello

Fine.

› /mcp
  here  running · 3 tools · SOURCE
    weather  what it is like · allowed in this session
    sleep  waits
    end  ends the server
  the tools are sent to the model: 319 tokens of its context

› /mcp ask
  nothing is allowed any more: each call is asked about

› /mcp off
  no tools are sent to the model; the servers keep running

› weather Rome

I look.<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>

"""
TYPED = """weather Brno
weather
weather Ulm
sleep
hello
/history 2
/mcp
/mcp ask
/mcp off
weather Rome
"""


def test_a_first_day(chat: Callable[..., ToolChat], config: ServerConfig) -> None:
    """A call once, in the session, refused and failed; without tools a call is text."""
    session = chat(config, answers=["What?", "y", "s", "n"])
    kept: list[str] = []
    session.talk.tools.put_back = kept.append
    begin = len(session.text)
    for line in TYPED.splitlines():
        session.type(line)
    wanted = FIRST_DAY.replace("SOURCE", states.shorten(config.source, 60))
    assert session.text[begin:] == wanted
    assert kept == ["What?"]


def test_always_is_kept(chat: Callable[..., ToolChat], tmp_path: Path) -> None:
    """For the next chats, in a file of the owner's; not for another program of that name."""
    asked = chat(HERE, answers=["a"])
    asked.type("weather Brno")
    path = permissions.allowed_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert QUESTION not in chat(HERE).type("weather Ulm")
    copy = tmp_path / "other_server.py"
    copy.write_text(SERVER.read_text("utf-8"))
    other = chat(ServerConfig("here", sys.executable, (str(copy),)), answers=["n"])
    assert QUESTION in other.type("weather Ulm")
    permissions.Permissions().allow("another chat's", always=True)
    assert len(json.loads(path.read_text())["allowed"]) == 2
    asked.type("/mcp ask")
    assert json.loads(path.read_text()) == {"version": 1, "allowed": []}
    path.write_text("{}")
    with pytest.raises(DFlashError, match=r"allowed_tools\.json"):
        chat(HERE)


def test_nobody_can_be_asked(chat: Callable[..., ToolChat]) -> None:
    """Through pipes nothing runs that is not allowed already; the end of the input is a no."""
    session = chat(HERE)
    session.talk.tools.ask = lambda question: None
    assert "It says: refused: nobody could be asked" in session.type("weather Brno")
    session.talk.tools.ask = lambda question: ""
    assert "It says: refused by the user" in session.type("weather Brno")


def test_long_arguments_can_be_seen(chat: Callable[..., ToolChat]) -> None:
    """All of it before it runs, if that is wanted; nothing in it can steer the terminal."""
    city = "x" * 700 + "\x1b[2J"
    shown = chat(HERE, answers=["v", "n"]).type(f"weather {city}")
    first, rest = shown.split(QUESTION.replace(" ›", ", v view all of it ›"), 1)
    assert "… 126 more characters" in first
    assert first.splitlines()[-1].count("x") < 600
    assert first.endswith(" more characters · here\n")
    assert rest.splitlines()[1].count("x") == 700
    assert "\x1b" not in shown.split("\n", 1)[1]


# What goes wrong ----------------------------------------------------------------------------------


def test_a_call_is_interrupted(chat: Callable[..., ToolChat]) -> None:
    """Ctrl-C ends the call and the turn; the model is told with the next prompt."""
    session = chat(HERE, answers=["s", "^C"])
    threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert session.type("sleep").endswith("  │ interrupted by the user\n\n\n")
    (turn,) = session.talk.chat.turns
    assert (turn.finish_reason, turn.answer) == ("interrupted", "")
    assert turn.steps[0].calls == (Call("sleep", "{}", "interrupted by the user", "interrupted"),)
    assert session.talk.interrupted_at > loop.NEVER
    assert transcript.load("sleep").turns == (turn,)
    session.type("weather Brno")  # interrupted where it is asked about
    assert session.type("hello").endswith("Fine.\n\n")
    roles = [m["role"] for m in session.prompts[-1][0]]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2 + ["user"]


def test_rounds_have_a_limit(
    chat: Callable[..., ToolChat], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, the calls that were not run are told, and the chat goes on."""
    monkeypatch.setattr(dialogue_module, "MAX_ROUNDS", 2)
    pair = talking_pair(
        lambda m: (
            says(m)
            if m[-1]["content"] == "hello"
            else '<tool_call>{"name": "weather", "arguments": {"city": "Brno"}}</tool_call>'
        )
    )
    session = chat(HERE, answers=["s"], pair=pair)
    shown = session.type("weather Brno")
    assert shown.count("  │ Brno 0:00 rain") == 2
    assert shown.endswith("  2 rounds of calls: stopped. Say 'go on' for more\n\n")
    assert session.talk.chat.turns[0].finish_reason == "calls"
    assert session.type("hello").endswith("Fine.\n\n")


def test_a_long_result_is_cut(chat: Callable[..., ToolChat], monkeypatch: Any) -> None:
    """It leaves the context room, and the model is told; without room the turn is kept."""
    session = chat(HERE, answers=["s"])
    monkeypatch.setattr(session.pair.target, "context_length", 1000)
    assert "It says: Brno 0:00 rain" in session.type("weather Brno")
    (call,) = session.talk.chat.turns[0].steps[0].calls
    assert call.result.endswith("Brno\n[cut: the first 250 of 373 characters]")
    monkeypatch.setattr(session.pair.target, "context_length", 500)
    shown = session.type("weather " + "x" * 30)
    assert "  │ [cut: the first 125 of 997 characters]\n\nError: the prompt has " in shown
    assert [turn.finish_reason for turn in session.talk.chat.turns] == ["stop", "calls"]


def test_servers_that_do_not_run(chat: Callable[..., ToolChat]) -> None:
    """Each is one sentence; the chat goes on, and a server that ends is told of and begun anew."""
    session = chat(
        HERE,
        ServerConfig("gone", "no-such-program"),
        ServerConfig("cross", sys.executable, ("-c", "print('junk'); exit('no key')")),
        answers=["y", "y"],
    )
    assert session.talk.tools.failures() == [
        "the MCP server 'gone' does not run: there is no 'no-such-program'.",
        "the MCP server 'cross' does not run: no key.",
    ]
    assert (
        session.talk.tools.summary(session.talk.info.no_tools)
        == "3 tools of here · /mcp lists them"
    )
    assert "It says: error: Connection closed" in session.type("end")
    server = session.talk.tools.servers.all[0]
    server.tools = (Tool("left", "", {}, str, "here", "left"),)  # the loop empties them later
    assert "  here   failed: it ended · " in session.type("/mcp")
    assert "  here   running · 3 tools" in session.type("/mcp on")
    assert "It says: Brno 0:00 rain" in session.type("weather Brno")
    with pytest.raises(UsageError, match="/mcp cannot be 'x'"):
        import_module("dflash_mlx.cli.chat.commands").dispatch(session.state, "/mcp x")
    assert "no MCP servers; [mcp.NAME] in " in chat().type("/mcp")


def test_a_model_without_tools(chat: Callable[..., ToolChat]) -> None:
    """It is said, and it gets none."""
    session = chat(HERE)
    session.pair.template._tokenizer._tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    summary = session.talk.tools.summary(session.talk.info.no_tools)
    assert summary == "3 tools of here, but this model does not call tools"
    assert "this model does not call tools: the tools are not sent to it" in session.type("/mcp")
    assert session.type("hello").endswith("Fine.\n\n")


# Saved chats --------------------------------------------------------------------------------------


def test_a_saved_chat_goes_on(chat: Callable[..., ToolChat]) -> None:
    """The next prompt is the same to the token, also without the servers; a fault would be seen."""
    first = chat(HERE, answers=["s"])
    first.type("weather Brno")
    saved = transcript.load("weather-brno")
    assert saved.turns == first.talk.chat.turns
    first.type("/mcp off")
    resumed = chat(pair=talking_pair(says))
    shown = resumed.type("/load weather-brno")
    assert "  │ Brno 0:00 rain\n" in shown
    first.type("hello")
    resumed.type("hello")
    assert resumed.sent == first.sent
    (turn,) = saved.turns
    (call,) = turn.steps[0].calls
    wrong = replace(turn, steps=(replace(turn.steps[0], calls=(replace(call, result="sun"),)),))
    resumed.talk.chat = replace(saved, turns=(wrong,))
    resumed.type("hello")
    assert resumed.sent != first.sent
    # A model that calls no tools reads the same as text.
    chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    resumed.pair.template._tokenizer._tokenizer.chat_template = chat_template
    del resumed.pair.template.shows_tools  # known from the former template
    resumed.talk.set_pair(resumed.pair)
    resumed.talk.chat = saved
    resumed.type("hello")
    roles = [message["role"] for message in resumed.prompts[-1][0]]
    assert roles == ["user", "assistant", "user"]
    text = resumed.prompts[-1][0][1]["content"]
    assert text.startswith('I look.\n\nweather(city: "Brno")\nBrno 0:00 rain\n')
    assert text.endswith("\n\nIt says: Brno 0:00 rain")
    markdown = transcript.to_markdown(saved)
    assert '*Called weather(city: "Brno"): done*' in markdown
    assert "Brno 23:00 rain" in markdown


def test_an_answer_that_a_kill_cut_off(
    chat: Callable[..., ToolChat], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk while the answer after a call streams is a chat that goes on."""
    monkeypatch.setattr(chat_file, "KEEP_SECONDS", 0)
    record, found = Stats.record, []

    def counting(self: Stats, block: Any) -> None:
        record(self, block)
        turn = transcript.load("weather-brno").turns[-1]
        if turn.steps:
            found.append(turn)

    monkeypatch.setattr(Stats, "record", counting)
    first = chat(HERE, answers=["y"])
    first.type("weather Brno")
    turn = found[1]
    (step,) = turn.steps
    assert [call.state for call in step.calls] == ["done"]
    assert "It says: Brno 0:00 rain".startswith(turn.answer or "nothing")
    assert turn.finish_reason == "interrupted"
    transcript.save("cut", transcript.Chat((turn,)))
    resumed = chat(pair=talking_pair(says))
    resumed.type("/load cut")
    assert resumed.type("hello").endswith("Fine.\n\n")
    sent = resumed.prompts[-1][0]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[3]["content"] == turn.answer


def test_a_call_that_a_kill_cut_off() -> None:
    """A chat that was saved while a call ran has a result for it, and loads."""
    turn = messages.turn_of("hi", [Step("", "why", (Call("weather", "{"),))])
    transcript.save("cut", transcript.Chat((turn,)))
    sent = messages.chat_messages(transcript.load("cut"), "and?")
    assert [m["content"] for m in sent] == ["hi", "", "not run", "", "and?"]
    path = transcript.chat_path("cut")
    whole = json.loads(path.read_text())
    for damage in ({"state": "?"}, {"name": 3}, {"result": None}):
        whole["turns"][0]["steps"][0]["calls"][0] |= damage
        path.write_text(json.dumps(whole))
        with pytest.raises(DFlashError, match="is not a saved chat"):
            transcript.load("cut")


# Options ------------------------------------------------------------------------------------------


def test_configured_servers(tmp_path: Path) -> None:
    """Tables of the config file and files of other programs; each name once."""
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[mcp.notes]\ncommand = "npx"\nargs = ["-y"]\nenv = { A = "b" }\n')
    file = tmp_path / "servers.json"
    file.write_text('{"mcpServers": {"web": {"url": "http://x"}}}')
    found = mcp_servers.configured_servers([file])
    assert found == [
        ServerConfig("notes", "npx", ("-y",), (("A", "b"),)),
        ServerConfig("web", url="http://x"),
    ]
    with pytest.raises(UsageError, match=r"'web' of .* is there already"):
        mcp_servers.configured_servers([file, file])
    page = (SERVER.parents[2] / "examples/guide/mcp.md").read_text("utf-8")
    config.write_text(page.split("```toml\n")[1].split("```")[0])
    names = ("@modelcontextprotocol/server-filesystem", "https://example.com/mcp")
    for server, name in zip(mcp_servers.configured_servers(), names, strict=True):
        assert name in server.source
    config.write_text('[mcp.notes]\ncmd = "npx"\n')
    with pytest.raises(DFlashError, match=r"'notes' in .*config.toml' has the key 'cmd'"):
        mcp_servers.configured_servers()


def test_the_flag(cli_app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of a file; a wrong one, and the missing extra, are told before a model is loaded."""
    file = tmp_path / "servers.json"
    here = {"command": sys.executable, "args": [str(SERVER)]}
    file.write_text(json.dumps({"mcpServers": {"here": here, "gone": {"command": "no-such"}}}))

    def run() -> tuple[int, str]:
        args = ["chat", "hi", *PAIR, "--max-tokens", "2", "--mcp", str(file)]
        done = CliRunner().invoke(cli_app, args)
        return done.exit_code, done.stderr

    assert run() == (
        0,
        "the MCP server 'gone' does not run: there is no 'no-such'.\n"
        "this model does not call tools, so the tools are not sent\n"
        "the answer was cut by --max-tokens, after 2 tokens\n",
    )
    monkeypatch.setattr("dflash_mlx.cli.backend.open.load_pair", lambda *args: 1 / 0)
    file.write_text("{}")
    code, told = run()
    assert code == 1
    assert "has no MCP servers" in told


@pytest.mark.slow
def test_in_a_terminal(tmp_path: Path) -> None:
    """Asked about with a key, a running call stopped by Ctrl-C, and nothing left behind."""
    folder = tmp_path / "config/dflash"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'[mcp.here]\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\n'
        '[mcp.gone]\ncommand = "no-such-program"\n[preset.dry]\ntemp = 0\n'
    )
    program = [sys.executable, str(SUPPORT / "talking_chat.py")]
    chat = Terminal([*program, "chat", "--demo", "-p", "dry"], environment(tmp_path))
    try:
        chat.prompted()
        assert chat.screen_text().endswith(
            "Ctrl-C stops · Ctrl-D leaves\n3 tools of here · /mcp lists them\n"
            "the MCP server 'gone' does not run: there is no 'no-such-program'.\n\n›"
        )
        chat.send("weather Brno\r")
        chat.wait_for(r"n no › ")
        chat.send("and in Ulm?\r")  # is no reply, and comes back
        chat.wait_for(r"what you typed is at the prompt again\s[\s\S]*n no › ")
        chat.send("s\r")
        chat.wait_for(r"20 more lines[\s\S]*It says: Brno 0:00 rain[\s\S]* · 1 call\s")
        chat.prompted("and in Ulm?")
        chat.send("\x15")
        chat.prompted()
        chat.send("sleep\r")
        chat.wait_for(r"n no › ")
        chat.send("y\r")
        chat.wait_for("running sleep")
        chat.send("hello\r")  # is queued, and comes back after the Ctrl-C
        chat.wait_for("queued  hello")
        chat.interrupt()
        chat.wait_for(
            r"interrupted by the user\s+stopped \(Ctrl-C again within 2 seconds to\s+leave\)"
        )
        chat.wait_for("1 queued message comes back")
        chat.prompted("hello")
        assert "running sleep" not in chat.screen_text()
        chat.send("\r")
        chat.wait_for(r"Fine\.")
        chat.prompted()
        chat.send("\x04")
        chat.leaves(0)
    finally:
        chat.close()
