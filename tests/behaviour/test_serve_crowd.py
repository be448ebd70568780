"""Many clients at once, and requests that nobody meant: every answer is the one it gets alone."""

import asyncio
import copy
import gc
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import mlx.core as mx
import pytest
from serving import Served, serving, settings_of

from dflash_mlx import api
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.serve.app import Server
from dflash_mlx.serve.protocol import Limits

PATH = "/v1/chat/completions"
PROMPTS = ("What is 12 plus 7?", "Name three colors.", "Count from 3 to 9.", "Who are you?")
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 4, "top_p": 0.9},
)


@pytest.fixture(scope="module")
def pair() -> Pair:
    """The bundled pair; it keeps nothing, so that its memory can be watched."""
    return load(cache_ram=0)


@pytest.fixture(scope="module")
def answers(pair: Pair) -> dict[tuple[str, int, int], str]:
    """What every request gets alone, by prompt, sampling and length."""
    found = {}
    for prompt in PROMPTS:
        for number, options in enumerate(SAMPLINGS):
            for length in (5, 20, 60):
                one = api.generate(
                    pair, prompt, max_tokens=length, sampling=SamplingParams(**options)
                )
                text = one.text.lstrip("\n") if one.thinking else one.text
                found[prompt, number, length] = text
    return found


async def crowd(served: Served, answers: dict[Any, str], clients: int, requests: int) -> None:
    """So many clients share so many requests of all kinds; each is held to its own answer."""
    rng = random.Random(7)
    left = [rng.random() for _ in range(requests)]

    async def client(number: int) -> None:
        mine = random.Random(number)
        async with httpx.AsyncClient(base_url=served.url, timeout=120) as http:
            while left:
                await one_request(http, mine, left.pop(), answers)

    await asyncio.gather(*(client(number) for number in range(clients)))


async def one_request(
    http: httpx.AsyncClient, rng: random.Random, kind: float, answers: dict[Any, str]
) -> None:
    """One request: whole, streamed, left in the middle, damaged, or too large."""
    key = rng.choice(list(answers))
    prompt, number, length = key
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": length,
        **SAMPLINGS[number],
    }
    head = {"Content-Type": "application/json"}
    if kind < 0.4:
        found = await http.post(PATH, json=body)
        assert found.status_code == 200
        assert found.json()["choices"][0]["message"]["content"] == answers[key]
    elif kind < 0.7:
        assert await streamed(http, body) == answers[key]
    elif kind < 0.85:
        said = await streamed(http, body, leave=rng.randrange(1, 6))
        assert answers[key].startswith(said)
    elif kind < 0.9:
        assert (await http.post(PATH, content=b'{"messages": [', headers=head)).status_code == 400
    elif kind < 0.95:
        large = b" " * (1 << 18) + b"{}"
        assert (await http.post(PATH, content=large, headers=head)).status_code == 413
    else:

        async def slow() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(1.0)
            yield b"}"

        try:
            found = await http.post(PATH, content=slow(), headers=head)
            assert found.status_code in (408, 400)
        except httpx.TransportError:  # it was closed before the rest was sent
            pass


async def streamed(http: httpx.AsyncClient, body: dict[str, Any], leave: int = 0) -> str:
    """The text of a stream; with `leave` the client goes after so many lines."""
    said, lines = "", 0
    async with http.stream("POST", PATH, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line.removeprefix("data: "))
            assert "error" not in data
            for choice in data["choices"]:
                said += choice["delta"].get("content") or ""
            lines += 1
            if leave and lines >= leave:
                break
    return said


def memory() -> int:
    gc.collect()

    def settled() -> int:
        mx.clear_cache()
        return mx.get_active_memory()

    return mlx_thread().call(settled)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "requests"), [("dflash", 500), ("auto", 100), ("ddtree", 60)])
def test_every_answer_is_the_one_it_gets_alone(
    pair: Pair, answers: dict[Any, str], mode: Any, requests: int
) -> None:
    limits = Limits(body_bytes=1 << 18, body_seconds=0.4, queue=500)
    with serving(pair, mode=mode, limits=limits, max_sequences=8) as served:
        asyncio.run(crowd(served, answers, 4, 8))
        served.wait_until_idle()
        held = [memory()]
        while len(held) < 4:  # what is lost is lost by every crowd
            asyncio.run(crowd(served, answers, 16, requests))
            served.wait_until_idle()
            held.append(memory())
            if held[-1] <= 1.02 * held[-2]:
                break
        else:
            pytest.fail(f"each crowd leaves more: {held}")
        statuses = {json.loads(line)["status"] for line in served.lines}
        assert statuses <= {200, 400, 408, 413, 499}


GOOD: tuple[tuple[str, dict[str, Any]], ...] = (
    (PATH, {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
            {"role": "user", "content": "More"},
        ],
        "model": "m", "max_tokens": 2, "temperature": 0.5, "seed": 1, "n": 2, "stop": ["x"],
        "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1.5}, "stream": False,
        "stream_options": {"include_usage": True}, "reasoning_effort": "low",
        "tool_choice": "auto", "response_format": {"type": "text"},
        "chat_template_kwargs": {"enable_thinking": False},
    }),
    ("/v1/completions", {
        "model": "m", "prompt": "A", "max_tokens": 2, "logprobs": 1, "stop": "b", "n": 1,
    }),
    ("/v1/messages", {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Look."},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "done"},
                {"type": "text", "text": "More"},
            ]},
        ],
        "model": "m", "max_tokens": 2, "stop_sequences": ["x"], "stream": False, "top_k": 5,
        "temperature": 0.5, "thinking": {"type": "disabled"}, "tools": [],
        "output_config": {"effort": "low", "format": None}, "tool_choice": {"type": "auto"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "u"},
    }),
    ("/v1/responses", {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "done"},
            {"role": "developer", "content": "More"},
        ],
        "model": "m", "max_output_tokens": 2, "stream": False, "temperature": 0.5,
        "tools": [{"type": "web_search"}], "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning": {"effort": "low", "summary": "auto"}, "store": True, "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -1e308, 1e-320),
    *("", "x", "\ud800", "\x00", "1" * 5000, "A" * 100_000, "system", "developer", "tool"),
    *([], [[]], {}, {"": {}}, [None], [1, 2, 3], ["a"] * 50, {"a": [{"b": [1]}]}),
    *({"type": "text"}, {"type": "image_url"}),
)


def mutated(rng: random.Random, body: Any) -> Any:
    """A body with one to three places changed, dropped, doubled or exchanged."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        places = list(walk(body))
        if not places:
            return rng.choice(VALUES)
        holder, key = rng.choice(places)
        what = rng.random()
        if what < 0.6:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif what < 0.75:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        else:
            other = rng.choice(places)
            holder[key] = copy.deepcopy(other[0][other[1]])
    return body


def walk(node: Any) -> Any:
    """Every place in a body: what holds it, and its key there."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from walk(node[key])


def written(rng: random.Random, body: Any) -> bytes:
    """A body as bytes, sometimes damaged."""
    raw = json.dumps(body).encode()
    if rng.random() < 0.15 and raw:
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + rng.randrange(3) :]
    return raw


async def fuzz(server: Server, count: int, seed: int) -> dict[int, int]:
    """Statuses of so many mutated requests."""
    found: dict[int, int] = {}
    rng = random.Random(seed)
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:

        async def one() -> None:
            path, body = rng.choice(GOOD)
            raw = written(rng, mutated(rng, body))
            head = {"Content-Type": "application/json"}
            answer = await http.post(path, content=raw, headers=head)
            found[answer.status_code] = found.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (path, raw[:2000])
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"], raw[:2000]

        for _ in range(count // 20):
            await asyncio.gather(*(one() for _ in range(20)))
    return found


@pytest.mark.slow
def test_ten_thousand_mutated_requests(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(pair, settings_of("m", {"max_tokens": 3, "max_sequences": 8}))
    found = asyncio.run(fuzz(server, 10_000, seed=1))
    assert sum(found.values()) == 10_000
    assert found[200] > 300
    assert found[400] > 3000
    assert not [record for record in caplog.records if record.exc_info]
    assert server.models.admission.running == server.models.admission.waiting == 0
