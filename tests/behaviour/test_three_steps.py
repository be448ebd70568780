"""The bundled pair completes tasks of three steps with tools, in a chat, in Python and by a server.

With drafts, a task runs the same calls and gets the same answers as with plain decoding.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from desk_tools import CALLS, REPORT, TASK, TOOLS
from paths import SUPPORT
from serving import serving
from terminal import Terminal, environment

import dflash_mlx
from dflash_mlx import Pair, SamplingParams, tools
from dflash_mlx.tools.functions import tools_of

DESK = SUPPORT / "desk_tools.py"
Mode = Literal["baseline", "dflash"]
MODES: tuple[Mode, Mode] = ("baseline", "dflash")
DRAWS = pytest.mark.parametrize("temperature", [0.0, 0.7])


@pytest.fixture(scope="module")
def pair() -> Pair:
    return dflash_mlx.load()


def run_in_python(pair: Pair, mode: Mode, temperature: float) -> tools.Answered:
    """The task by `tools.run`."""
    sampling = SamplingParams(temperature=temperature, seed=4)
    return tools.run(pair, TASK, TOOLS, mode=mode, sampling=sampling, max_tokens=200)


@DRAWS
def test_in_python(pair: Pair, temperature: float) -> None:
    plain, drafted = (run_in_python(pair, mode, temperature) for mode in MODES)
    assert drafted.messages == plain.messages
    assert sum(stats.accepted for stats in drafted.stats) > 20
    if temperature == 0:
        made = [call for step in drafted.steps for call in step.calls]
        assert [(c.name, json.loads(c.arguments), c.result) for c in made] == CALLS
        assert drafted.text == REPORT


def run_by_client(pair: Pair, mode: Mode, temperature: float) -> list[str]:
    """The messages of the task after the user's, as a program with OpenAI's client runs it."""
    functions = {tool.name: tool for tool in tools_of(TOOLS)}
    schemas: Any = [tool.schema for tool in functions.values()]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    calls: list[Any] | None = None
    with serving(pair, mode=mode) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        while calls is None or calls:
            reply = client.chat.completions.create(
                model="m", messages=messages, tools=schemas, temperature=temperature, seed=4,
                max_tokens=200,
            )  # fmt: skip
            said = reply.choices[0].message
            messages.append(said)
            calls = said.tool_calls or []
            for call in calls:
                result = functions[call.function.name].run(json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return [m["content"] if isinstance(m, dict) else m.content for m in messages[1:]]


@DRAWS
def test_by_a_server(pair: Pair, temperature: float) -> None:
    plain, drafted = (run_by_client(pair, mode, temperature) for mode in MODES)
    assert drafted == plain
    if temperature == 0:
        assert drafted[1::2] == [result for *_, result in CALLS]
        assert drafted[-1] == REPORT


def run_in_chat(folder: Path, mode: Mode, temperature: float) -> dict[str, Any]:
    """The turn of a chat in a terminal that does the task; every call is allowed."""
    servers = {"mcpServers": {"desk": {"command": sys.executable, "args": [str(DESK)]}}}
    path = folder / "servers.json"
    path.write_text(json.dumps(servers))
    command = [sys.executable, "-m", "dflash_mlx", "chat", "--demo", "--mcp", str(path)]
    command += ["--mode", mode, "--temp", str(temperature), "--seed", "4", "--max-tokens", "200"]
    terminal = Terminal(command, environment(folder), columns=100)
    try:
        terminal.prompted()
        terminal.send(TASK + "\r")
        while terminal.wait_for(r"run it\?|prompt\s+\d+\s+new").group() == "run it?":
            terminal.send("y\r")
        terminal.prompted()
        terminal.send("/exit\r")
        terminal.leaves(0)
    finally:
        terminal.close()
    (chat,) = (folder / "data/dflash/chats").glob("*.json")
    (turn,) = json.loads(chat.read_text())["turns"]
    return {name: turn[name] for name in ("prompt", "steps", "answer")}


@DRAWS
def test_in_a_chat(tmp_path: Path, temperature: float) -> None:
    for mode in MODES:
        (tmp_path / mode).mkdir()
    plain, drafted = (run_in_chat(tmp_path / mode, mode, temperature) for mode in MODES)
    assert drafted == plain
    if temperature == 0:
        results = [call["result"] for step in drafted["steps"] for call in step["calls"]]
        assert results == [result for *_, result in CALLS]
        assert drafted["answer"] == REPORT
