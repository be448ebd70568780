"""`dflash serve` under mixed load: are the answers those given alone, and does memory level out?

    python mixed_load.py answers --requests 2000 [--model FOLDER ...]
    python mixed_load.py memory --minutes 10 [--cache-ram 0]
    python mixed_load.py waits [--long 10000]
    python mixed_load.py faults

`answers`: requests of six APIs, whole, streamed, cancelled, greedy and seeded, with schemas and
tools, from 1 to 32 clients. Each answer is compared with the one that the same request got when no
other was running. `memory`: the same, and the memory of the server's process over time. `waits`:
the time to the first token and the gaps of short requests beside prompts of 10,000 tokens.
`faults`: slow readers, idle connections, a full disk, and kill -9 with --cache-disk.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

import httpx
from servers import ask, copy_of, free_port, wait_until_healthy
from text import held_out

from dflash_mlx.session import count_common

CLIENTS = (1, 2, 4, 8, 16, 32)
PROMPTS = 8
MAX_TOKENS = 60
WORDS = "one two three four five six "
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "why": {"type": "string", "maxLength": 20}},
    "required": ["answer", "why"],
    "additionalProperties": False,
}
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


@dataclass(frozen=True)
class Request:
    """One request; whether it is streamed changes nothing in its answer."""

    api: str
    model: str
    prompt: str
    seed: int | None  # greedy without
    extra: str  # "", "schema" or "tools"
    max_tokens: int

    def body(self) -> dict[str, Any]:
        sampling: dict[str, Any] = {"temperature": 0}
        if self.seed is not None:
            sampling = {"temperature": 1, "seed": self.seed}
        ollama = {"model": self.model, "options": {**sampling, "num_predict": self.max_tokens}}
        messages = [{"role": "user", "content": self.prompt}]
        limited = {"model": self.model, **sampling, "max_tokens": self.max_tokens}
        named = {"name": "reply", "schema": SCHEMA}
        body, with_schema, tool = {
            "/v1/chat/completions": (
                limited | {"messages": messages},
                {"response_format": {"type": "json_schema", "json_schema": named}},
                {"type": "function", "function": ADD},
            ),
            "/v1/completions": (
                limited | {"prompt": self.prompt},
                {"response_format": {"type": "json_schema", "json_schema": named}},
                None,
            ),
            "/v1/responses": (
                {**sampling, "model": self.model, "input": self.prompt}
                | {"max_output_tokens": self.max_tokens},
                {"text": {"format": {"type": "json_schema", **named}}},
                {"type": "function", **ADD},
            ),
            "/v1/messages": (
                limited | {"messages": messages},
                {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
                {"name": "add", "input_schema": ADD["parameters"]},
            ),
            "/api/chat": (
                ollama | {"messages": messages},
                {"format": SCHEMA},
                {"type": "function", "function": ADD},
            ),
            "/api/generate": (ollama | {"prompt": self.prompt}, {"format": SCHEMA}, None),
        }[self.api]
        if self.extra == "schema":
            return body | with_schema
        return body | ({"tools": [tool]} if self.extra == "tools" and tool else {})


def requests(models: Sequence[str], prompts: int, max_tokens: int) -> list[Request]:
    """All the different requests."""
    apis = (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/chat",
        "/api/generate",
    )
    texts = [sample.prompt for sample in held_out(prompts)]
    every = product(apis, models, texts, (None, 5), ("", "schema", "tools"))
    return [Request(*one, max_tokens) for one in every]


def pieces(value: Any) -> Iterator[str]:
    """The text, the names and the arguments of calls in an answer of any API, without thoughts."""
    if isinstance(value, list):
        for part in value:
            yield from pieces(part)
    elif isinstance(value, dict) and value.get("type") != "reasoning":
        for key in ("choices", "message", "delta", "output", "content"):
            if not isinstance(value.get(key), str | None):
                yield from pieces(value[key])
        for key in ("content", "text", "response", "name", "partial_json"):
            if isinstance(value.get(key), str):
                yield value[key]
        for key in ("function", "tool_calls"):
            yield from pieces(value.get(key))
        for key in ("arguments", "input"):
            if value.get(key):
                given = value[key]
                yield given if isinstance(given, str) else json.dumps(given)


def streamed_pieces(event: dict[str, Any]) -> Iterator[str]:
    """The same of one event of a stream."""
    kind = event.get("type", "")
    if kind.startswith("response."):  # of Responses; all but deltas repeat them
        if kind == "response.output_text.delta":
            yield event["delta"]
    elif kind in ("", "content_block_delta"):
        yield from pieces(event)


async def answer_of(
    http: httpx.AsyncClient, request: Request, *, stream: bool = False, leave: int = 0
) -> str:
    """The answer's text and calls. With `leave` the client goes after so many events."""
    body = request.body() | {"stream": stream}
    if not stream:
        reply = await http.post(request.api, json=body)
        reply.raise_for_status()
        return "".join(pieces(reply.json())).strip()
    said, events = [], 0
    async with http.stream("POST", request.api, json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            said += streamed_pieces(json.loads(data))
            events += 1
            if leave and events >= leave:
                break
    return "".join(said).strip()


@dataclass
class Load:
    """What the requests of the clients gave."""

    answered: int = 0
    left: int = 0
    differing: list[tuple[int, Request, str, str]] = field(default_factory=list)


async def ask_some(
    url: str, alone: dict[Request, str], clients: int, count: int, rng: Random, load: Load
) -> None:
    """Ask `count` of the requests, drawn at random, with so many clients at once."""
    left = [rng.choice(list(alone)) for _ in range(count)]

    async def client(mine: Random) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            while left:
                request = left.pop()
                way = mine.random()
                if way < 0.15:
                    said = await answer_of(http, request, stream=True, leave=mine.randint(1, 6))
                    load.left += 1
                    same = request.extra == "tools" or alone[request].startswith(said)
                else:
                    stream = way < 0.5 and request.extra != "tools"  # a call's events differ
                    said = await answer_of(http, request, stream=stream)
                    load.answered += 1
                    same = said == alone[request]
                if not same:
                    load.differing.append((clients, request, alone[request], said))

    await asyncio.gather(*(client(Random(rng.random())) for _ in range(clients)))


async def ask_alone(
    url: str, models: Sequence[str], prompts: int = PROMPTS, max_tokens: int = MAX_TOKENS
) -> dict[Request, str]:
    """The answer of each request that its model can answer, while no other is running."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        listed = (await http.get("/api/tags")).json()["models"]
        able = {one["name"].removesuffix(":latest"): one["capabilities"] for one in listed}
        asked = [
            one
            for one in requests(models, prompts, max_tokens)
            if one.extra != "tools" or "tools" in able[one.model]
        ]
        return {request: await answer_of(http, request) for request in asked}


def answers(
    count: int, folders: Sequence[Path], flags: Sequence[str], prompts: int, max_tokens: int
) -> None:
    """Compare the answers of many clients with those given alone."""
    named = [f for folder in folders for f in ("--models", str(folder.parent))]
    with server([*flags, *named]) as (url, _):
        models = ["bundled", *(folder.name for folder in folders)]
        alone = asyncio.run(ask_alone(url, models, prompts, max_tokens))
        load = Load()
        rng = Random(3)
        for clients in CLIENTS:
            asyncio.run(ask_some(url, alone, clients, count // len(CLIENTS), rng, load))
            print(f"{clients:3} clients: {load.answered} answers, {load.left} left early, "
                  f"{len(load.differing)} differ", flush=True)  # fmt: skip
    for clients, request, expected, said in load.differing:
        place = count_common(expected, said)
        print(f"{clients} clients, {request}")
        print(f"   alone   {expected[max(0, place - 20) : place + 40]!r}")
        print(f"   beside  {said[max(0, place - 20) : place + 40]!r}")


def memory(minutes: float, flags: Sequence[str]) -> None:
    """Print the server's memory while 1 to 32 clients ask."""
    with server(flags) as (url, process):
        alone = asyncio.run(ask_alone(url, ["bundled"]))
        print(f"{'minutes':>8}{'requests':>10}{'MB':>8}{'of it arrays':>14}{'differ':>8}")
        rng, load, began = Random(4), Load(), time.monotonic()
        for part in range(20):
            while time.monotonic() - began < 60 * minutes * (part + 1) / 20:
                asyncio.run(ask_some(url, alone, rng.choice(CLIENTS), 40, rng, load))
            print(f"{(time.monotonic() - began) / 60:8.1f}{load.answered + load.left:10}"
                  f"{resident(process.pid) / 1e6:8.0f}{array_bytes(url) / 1e6:14.0f}"
                  f"{len(load.differing):8}", flush=True)  # fmt: skip


def resident(process: int) -> int:
    """The memory of a process in bytes, as `ps` counts it."""
    command = ["ps", "-o", "rss=", "-p", str(process)]
    return 1024 * int(subprocess.run(command, capture_output=True, check=True).stdout)


def array_bytes(url: str) -> float:
    """The bytes of the server's arrays: weights, running answers and prefix cache."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith("dflash_active_memory_bytes "))
    return float(line.split()[1])


def waits(long: int) -> None:
    """Print how long short requests wait beside long prompts: median and 95th percentile."""
    with tempfile.TemporaryDirectory() as folder:
        target = copy_of("target", Path(folder, "target"), context=2 * long)
        draft = copy_of("draft", Path(folder, "draft"), context=2 * long)
        with server(["-m", str(target), "-d", str(draft), "--cache-ram", "0"]) as (url, _):
            words = asyncio.run(words_of(url, long))
            print(f"{'clients':>8}{'long prompts':>14}{'first token, s':>18}{'gap, ms':>18}")
            for clients, others in product((1, 4, 16), (0, 1, 4)):
                firsts, gaps = asyncio.run(waits_beside(url, clients, others, words))
                print(f"{clients:8}{others:14}{in_two(firsts, 1):>18}{in_two(gaps, 1000):>18}",
                      flush=True)  # fmt: skip


def in_two(times: Sequence[float], unit: float) -> str:
    """The median and the 95th percentile of seconds, in this unit."""
    return f"{unit * median(times):.2f} / {unit * quantiles(times, n=20)[-1]:.2f}"


async def words_of(url: str, long: int) -> str:
    """Words of about `long` tokens."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        few, more = [(await ask(http, "target", WORDS * n, 2)).prompt_tokens for n in (10, 20)]
    return WORDS * (10 * long // (more - few))


async def waits_beside(
    url: str, clients: int, others: int, words: str
) -> tuple[list[float], list[float]]:
    """First tokens and gaps of short requests while `others` read these words."""
    short = [sample.prompt for sample in held_out(12 * clients)]
    firsts: list[float] = []
    gaps: list[float] = []
    done = asyncio.Event()

    async def reader(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            turn = 0
            while not done.is_set():
                turn += 1
                await ask(http, "target", f"{number} {turn} {words}", 2)

    async def client() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            while short:
                found = await ask(http, "target", short.pop(), 100, logprobs=True)
                firsts.append(found.first)
                gaps.extend(b - a for a, b in pairwise(found.stamps))

    readers = [asyncio.create_task(reader(number)) for number in range(others)]
    await asyncio.gather(*(client() for _ in range(clients)))
    done.set()
    await asyncio.gather(*readers)
    return firsts, gaps


def faults() -> None:
    """Slow readers, idle connections, a full disk, and kill -9 with --cache-disk."""
    with server([]) as (url, _):
        alone = asyncio.run(ask_alone(url, ["bundled"]))
        print("20 slow readers:", asyncio.run(beside_slow_readers(url, alone)), flush=True)
        print("500 idle connections:", asyncio.run(beside_idle(url, alone)), flush=True)
    disk = ["--cache-disk", "1GB"]
    with tempfile.TemporaryDirectory() as folder:
        home = {"XDG_CACHE_HOME": folder, "HOME": folder}
        with server(disk, home, largest_file=20_000) as (url, _):
            print("a full disk:", asyncio.run(some(url, alone)), flush=True)
        for number in range(5):
            with server(disk, home) as (url, process):
                print(f"kill -9, start {number + 1}:", asyncio.run(some(url, alone)), flush=True)
                process.send_signal(signal.SIGKILL)


async def some(url: str, alone: dict[Request, str]) -> str:
    """Ask 60 requests with 8 clients; the result as a phrase."""
    load, began = Load(), time.monotonic()
    await ask_some(url, alone, 8, 60, Random(5), load)
    seconds = time.monotonic() - began
    return f"{load.answered + load.left} requests in {seconds:.1f} s, {len(load.differing)} differ"


async def beside_slow_readers(url: str, alone: dict[Request, str]) -> str:
    """The same while 20 clients read one letter of their streams every second."""
    before = await some(url, alone)
    body = {"messages": [{"role": "user", "content": "Hi."}], "ignore_eos": True, "stream": True}
    body |= {"max_tokens": 2000}

    async def slow() -> None:
        reader, writer = await connection(url)
        data = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        while await reader.read(1):
            await asyncio.sleep(1)

    readers = [asyncio.create_task(slow()) for _ in range(20)]
    await asyncio.sleep(2)
    beside = await some(url, alone)
    for reader in readers:
        reader.cancel()
    return f"{beside} (without: {before})"


async def beside_idle(url: str, alone: dict[Request, str]) -> str:
    """The same while 500 connections are open and send nothing."""
    opened = await asyncio.gather(*(connection(url) for _ in range(500)))
    found = await some(url, alone)
    for _, writer in opened:
        writer.close()
    return found


async def connection(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", httpx.URL(url).port, limit=1024)


@contextmanager
def server(
    flags: Sequence[str], variables: dict[str, str] | None = None, largest_file: int = 0
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server's address and process. With `largest_file` it can write no more bytes into one."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "dflash_mlx", "serve", "--port", str(port)]
    command += ["--queue", "1000", *flags]
    if not {"-m", "--models"} & {*flags}:  # with --models all models are served
        command += ["-m", "bundled"]
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest_file, largest_file))
    process = subprocess.Popen(
        command,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=limit if largest_file else None,
    )
    try:
        wait_until_healthy(url, process)
        yield url, process
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("answers", "memory", "waits", "faults"))
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--model", type=Path, action="append", default=[], help="one more model")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="different texts")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="of each answer")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cache-ram", help="memory of the server's prefix cache")
    parser.add_argument("--long", type=int, default=10_000, help="tokens of a long prompt")
    args = parser.parse_args()
    flags = ["--cache-ram", args.cache_ram] if args.cache_ram else []
    if args.what == "answers":
        answers(args.requests, args.model, flags, args.prompts, args.max_tokens)
    elif args.what == "memory":
        memory(args.minutes, flags)
    elif args.what == "waits":
        waits(args.long)
    else:
        faults()


if __name__ == "__main__":
    main()
