"""Agents of other packages, and our own loop, complete a task of three steps with the bundled pair.

Each agent speaks another API of the server. With drafts, they make the calls of plain decoding.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import desk_tools
import pytest
from desk_tools import CALLS, REPORT, TASK, TOOLS
from openai import AsyncOpenAI
from serving import Served, serving

import dflash_mlx
from dflash_mlx import SamplingParams, tools
from dflash_mlx.options import Mode

CALLED = [(name, arguments) for name, arguments, _ in CALLS]


@pytest.fixture(scope="module", params=["baseline", "dflash"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """The bundled pair, greedy, with and without drafts."""
    with serving(dflash_mlx.load(), mode=request.param, max_tokens=200) as server:
        yield server


def test_pydantic_ai(served: Served) -> None:
    """Through chat completions."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = OpenAIProvider(base_url=f"{served.url}/v1", api_key="x")
    agent = Agent(OpenAIChatModel("m", provider=client), tools=TOOLS)
    run = agent.run_sync(TASK)
    parts = [part for message in run.all_messages() for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    assert [(call.tool_name, call.args_as_dict()) for call in calls] == CALLED
    assert run.output == REPORT


def test_llm(served: Served, tmp_path: Path) -> None:
    """Through chat completions, by the command `llm` with its switch for functions."""
    entry = {"model_id": "m", "model_name": "m", "api_base": f"{served.url}/v1"}
    models = [{**entry, "supports_tools": True}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    command = [sys.executable, "-m", "llm", "-m", "m", TASK, "--td"]
    command += ["--functions", desk_tools.__file__ or ""]
    variables = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "x"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == REPORT, done.stderr
    called = [line for line in done.stderr.splitlines() if line.startswith("Tool call: ")]
    assert called == [f"Tool call: {name}({arguments})" for name, arguments in CALLED]


def test_openai_agents(served: Served) -> None:
    """Through Responses."""
    import agents

    agents.set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x")
    model = agents.OpenAIResponsesModel("m", client)
    functions: Any = [agents.function_tool(tool) for tool in TOOLS]
    agent = agents.Agent(name="desk", model=model, tools=functions)
    run = asyncio.run(agents.Runner.run(agent, TASK))
    calls: list[Any] = [item.raw_item for item in run.new_items if item.type == "tool_call_item"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == CALLED
    assert run.final_output == REPORT


def test_anthropic_tool_runner(served: Served) -> None:
    """Through Messages. The runner first asks for a thread, which the server refuses by name."""
    client = anthropic.Anthropic(base_url=served.url, api_key="x", max_retries=0)
    run = partial(client.beta.messages.tool_runner, model="m", max_tokens=200)
    functions: Any = [anthropic.beta_tool(as_text(tool)) for tool in TOOLS]
    blocks = [
        block
        for message in run(tools=functions, messages=[{"role": "user", "content": TASK}])
        for block in message.content
    ]
    assert [(block.name, block.input) for block in blocks if block.type == "tool_use"] == CALLED
    assert [block.text for block in blocks if block.type == "text"][-1] == REPORT


def as_text(tool: Any) -> Any:
    """The tool with its result as text, the only kind that this runner takes."""
    from functools import wraps

    @wraps(tool)
    def text_of(*args: Any, **kwargs: Any) -> str:
        return str(tool(*args, **kwargs))

    return text_of


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_our_own_loop(temperature: float) -> None:
    """`tools.run` in Python, also where it samples: drafts change no call and no word."""
    pair = dflash_mlx.load()

    def run(mode: Mode) -> tools.Answered:
        sampling = SamplingParams(temperature=temperature, seed=4)
        return tools.run(pair, TASK, TOOLS, mode=mode, sampling=sampling, max_tokens=200)

    plain, drafted = run("baseline"), run("dflash")
    assert drafted.messages == plain.messages
    assert sum(stats.accepted for stats in drafted.stats) > 20
    if temperature == 0:
        made = [call for step in drafted.steps for call in step.calls]
        assert [(c.name, json.loads(c.arguments), c.result) for c in made] == CALLS
        assert drafted.text == REPORT
