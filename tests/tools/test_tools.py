"""Tools from Python: functions and MCP servers, the loop, and what a model is told of failures."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from paths import SUPPORT
from tool_talk import calls, talking_pair

from dflash_mlx import tools
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.tools import mcp as servers_module
from dflash_mlx.tools.call import step_messages

SERVER = SUPPORT / "mcp_server.py"
RAIN = "\n".join(f"Brno {hour}:00 rain" for hour in range(24))


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> str:
    """What the weather is like."""
    if city == "nowhere":
        raise LookupError("no such city")
    return f"{city} {days} {unit}"


def boom(x: Any) -> dict[str, int]:
    """Something that is no text."""
    return {"x": 1}


def three_rounds(messages: list[dict[str, Any]]) -> str:
    """Two calls at once, then one that fails, then the answer."""
    results = [m["content"] for m in messages if m["role"] == "tool"]
    if not results:
        city = '{"city": "Brno", "days": 2}'
        return "<think>which?</think>\n\nI look." + calls("weather", city) + calls("boom")
    if len(results) == 2:
        return "<think>there?</think>" + calls("weather", '{"city": "nowhere"}')
    return "Wet."


def test_a_function_is_a_tool() -> None:
    """What the model is told comes from the signature; what JSON has not is refused."""
    assert tools.tool_of(weather).schema["function"] == {
        "name": "weather",
        "description": "What the weather is like.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "default": 1},
                "unit": {"enum": ["C", "F"], "default": "C"},
            },
            "required": ["city"],
        },
    }

    def several(a: list[int] | None, b: dict[str, float], *, c: bool) -> None: ...

    assert tools.tool_of(several).parameters["properties"] == {
        "a": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "b": {"type": "object", "additionalProperties": {"type": "number"}},
        "c": {"type": "boolean"},
    }

    def wrong(x: bytes) -> None: ...
    def open_ended(*x: int) -> None: ...
    async def later(x: int) -> None: ...

    for function in (wrong, open_ended, later, lambda x: x):
        with pytest.raises(UsageError):
            tools.tool_of(function)


def test_rounds_until_there_is_an_answer() -> None:
    """Each call is run once, in order; results and failures go back; nothing is read twice."""
    pair = talking_pair(three_rounds)
    shown: list[str] = []
    done: list[Any] = []
    found = tools.run(
        pair,
        "Is it dry?",
        [weather, boom],
        on_block=lambda block: shown.append(block.text),
        on_call=done.append,
    )
    assert (found.text, found.finish_reason) == ("Wet.", "stop")
    assert "".join(shown).replace("\n", "") == "I look.Wet."
    assert [(call.result, call.state) for call in done] == [
        ("Brno 2 C", "done"),
        ("TypeError: missing a required argument: 'x'", "failed"),
        ("LookupError: no such city", "failed"),
    ]
    first, second, last = found.steps
    assert (first.text, first.thinking, len(first.calls)) == ("I look.", "which?", 2)
    assert (second.text, second.thinking, last.calls) == ("", "there?", ())
    roles = [message["role"] for message in found.messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    ids = [m["tool_call_id"] for m in found.messages if m["role"] == "tool"]
    assert ids == ["call00001", "call00002", "call00003"]
    assert found.messages[1]["reasoning_content"] == "which?"
    # Each prompt is the chat so far, and all but the new results was read before.
    asked: Any = pair.target
    for number, (messages, _) in enumerate(asked.prompts):
        assert messages == found.messages[: (1, 4, 6)[number]]
    assert found.stats[1].cached_tokens > asked.prompts[0][1].__len__()
    assert all(stats.accepted for stats in found.stats)
    # A chat that goes on is numbered on.
    assert step_messages(found.steps[:1], found.messages)[1]["tool_call_id"] == "call00004"


def test_refusals_limits_and_nonsense() -> None:
    """What is not allowed, not there or not JSON is told to the model; rounds have a limit."""

    def says(messages: list[dict[str, Any]]) -> str:
        told = [m["content"] for m in messages if m["role"] == "tool"]
        return calls(["weather", "nothing", "weather"][len(told) % 3], '{"city": "Brno"}')

    found = tools.run(
        talking_pair(says), "?", [weather], max_rounds=2, allow=lambda call: "city" not in call.name
    )
    assert found.finish_reason == "rounds"
    results = [step.calls[0].result for step in found.steps]
    assert results == [
        "Brno 1 C",
        "error: there is no tool 'nothing'; there are: weather",
        "not run: there were 2 rounds of calls already",
    ]
    refused = tools.run(
        talking_pair(lambda m: "so be it" if m[-1]["role"] == "tool" else calls("weather")),
        "?",
        [weather],
        allow=lambda call: False,
    )
    (call,) = refused.steps[0].calls
    assert (call.state, call.result, refused.text) == ("refused", "refused by the user", "so be it")


def test_what_is_refused() -> None:
    """Names that are there twice, tools that are given twice, models without tools."""
    pair = talking_pair(lambda messages: "")
    with pytest.raises(UsageError, match="two tools named 'weather'"):
        tools.run(pair, "?", [weather, weather])
    with pytest.raises(UsageError, match="twice"):
        tools.run(pair, "?", [weather], tools=[])
    pair.template._tokenizer._tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(UsageError, match="does not call tools"):
        tools.run(pair, "?", [weather])


# Servers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    program = [sys.executable, str(SERVER), "--http"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        process.terminate()


@pytest.fixture
def both(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of Claude Desktop's with one server by each way, and some that cannot start."""
    monkeypatch.setenv("KEY", "secret")
    here = {"command": sys.executable, "args": [str(SERVER)]}
    document = {
        "mcpServers": {
            "here": {**here, "env": {"MCP_SERVER_LOG": str(tmp_path / "log")}, "autoApprove": []},
            "there": {"type": "http", "url": address, "headers": {"X-Key": "${KEY}"}},
            "locked": {"url": address},
            "missing": {"command": "no-such-program"},
            "broken": {"command": sys.executable, "args": ["-c", "raise SystemExit('no key')"]},
            "unset": {**here, "env": {"A": "${NOT_SET}"}},
            "off": {**here, "disabled": True},
        },
        "other": 1,
    }
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(json.dumps(document))
    return path


def test_servers(both: Path, tmp_path: Path) -> None:
    """Both ways are called; what cannot start is said and no more; a call ends with Ctrl-C."""
    with tools.Servers(tools.read_server_file(both)) as running:
        states = {one.config.name: (one.state, one.why) for one in running.all}
        assert states["here"] == states["there"] == ("running", "")
        assert states["missing"] == ("failed", "there is no 'no-such-program'")
        assert states["broken"] == ("failed", "no key")
        assert states["unset"] == ("failed", "the variable NOT_SET is not set")
        assert states["locked"][0] == "failed"
        assert "off" not in states
        box = {tool.name: tool for tool in running.tools}
        names = ["weather", "sleep", "end"]
        assert list(box) == [f"{one}__{name}" for one in ("here", "there") for name in names]
        for one in ("here", "there"):
            assert box[f"{one}__weather"].run({"city": "Brno"}) == RAIN
            with pytest.raises(DFlashError, match="no city given"):
                box[f"{one}__weather"].run({})
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            box["there__sleep"].run({})
        with pytest.raises(DFlashError, match="Connection closed"):
            box["here__end"].run({})
        assert [one.why for one in running.all if one.config.name == "here"] == ["it ended"]
        assert [tool.name for tool in running.tools] == names  # nobody else has them now
        told = [json.loads(line)["method"] for line in (tmp_path / "log").read_text().splitlines()]
        assert told[-4:] == ["tools/list", "tools/call", "tools/call", "tools/call"]
        pair = talking_pair(
            lambda messages: (
                messages[-1]["content"][:9]
                if messages[-1]["role"] == "tool"
                else calls("weather", '{"city": "Brno"}')
            )
        )
        assert tools.run(pair, "?", [*running.tools, boom]).text == "Brno 0:00"


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its time, and no more; leaving does not wait for it."""
    config = tools.ServerConfig("mute", sys.executable, ("-c", "import time; time.sleep(99)"))
    monkeypatch.setattr(servers_module, "START_SECONDS", 0.2)
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.1)
    with tools.Servers([config]) as running:
        assert running.all[0].why.startswith("it told no tools within")
        monkeypatch.setattr(servers_module, "START_SECONDS", 60)
        running.start()
        assert running.all[0].state == "starting"


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({}, "needs a command or a url"),
        ({"command": "x", "url": "http://x"}, "needs a command or a url"),
        ({"command": ["x"]}, "has no text as its command"),
        ({"command": "x", "args": "y"}, "args that are no list"),
        ({"command": "x", "env": {"A": 1}}, "other than texts in env"),
        ({"url": "http://x", "type": "sse"}, "is of the type 'sse'"),
        ({"url": "x"}, "has the address 'x'"),
        (3, "is no table"),
    ],
)
def test_a_wrong_server(tmp_path: Path, table: Any, what: str) -> None:
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"context_servers": {"one": table}}))
    with pytest.raises(DFlashError) as found:
        tools.read_server_file(path)
    assert f"the MCP server 'one' in '{path}' " in found.value.message
    assert what in found.value.message
    assert found.value.hint


def test_no_servers(tmp_path: Path) -> None:
    """A file of something else, and none."""
    for text in ("{", "[]", '{"a": 1}'):
        (tmp_path / "x").write_text(text)
        with pytest.raises(DFlashError):
            tools.read_server_file(tmp_path / "x")
    with pytest.raises(DFlashError, match="cannot be read"):
        tools.read_server_file(tmp_path / "y")


def test_mcp_is_imported_only_for_servers() -> None:
    """It takes a second: no module of the package imports it at its top."""
    root = Path(__file__).parents[2]
    files = [*(root / "dflash_mlx").rglob("*.py"), *(root / "cli").rglob("*.py")]
    own = re.compile(r"^(from|import) (mcp|mcp_types|httpx2)\b", re.MULTILINE)
    # With httpx2, which mcp uses, servers are asked.
    assert [file.name for file in files if own.search(file.read_text("utf-8"))] == ["client.py"]
    inside = re.compile(r"^ +from mcp import", re.MULTILINE)
    assert [file.name for file in files if inside.search(file.read_text("utf-8"))] == ["mcp.py"]
