"""Starts this package's server and others as processes, and times the streams of clients."""

import asyncio
import json
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dflash_mlx  # noqa: F401  # before MLX, whose matrix products on the CPU it makes fast

# isort: split
import httpx
import mlx.core as mx

from dflash_mlx.hub.resolve import bundled

OTHER = (
    "import dflash_mlx, runpy, sys; sys.argv[0] = 'mlx_lm.server'; "
    "runpy.run_module('mlx_lm.server', run_name='__main__')"
)


@dataclass(frozen=True)
class Answer:
    """One streamed answer: token counts, the start, the time of each piece of text, the text."""

    prompt_tokens: int
    tokens: int
    began: float
    stamps: list[float]
    text: str

    @property
    def first(self) -> float:
        """Seconds to the first text."""
        return self.stamps[0] - self.began


async def ask(
    http: httpx.AsyncClient, model: str, prompt: str, max_tokens: int, **more: Any
) -> Answer:
    """Request a stream. With `logprobs`, tokens without text count as pieces, too."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},  # mlx-lm's server thinks by default
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stamps: list[float] = more.pop("stamps", [])
    began, usage, text = time.perf_counter(), {}, ""
    async with http.stream("POST", "/v1/chat/completions", json=body | more) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line[6:])
            for choice in data["choices"]:
                delta = choice["delta"]
                if delta.get("reasoning") or delta.get("content") or choice.get("logprobs"):
                    stamps.append(time.perf_counter())
                text += delta.get("content") or ""
            usage = data.get("usage") or usage
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    return Answer(*counts, began, stamps, text.strip())


async def level(
    url: str, model: str, prompts: list[str], clients: int, max_tokens: int
) -> tuple[float, list[Answer]]:
    """Answer prompts with several clients; returns the total seconds and the answers in order."""
    left = list(enumerate(prompts))
    found: dict[int, Answer] = {}

    async def client() -> None:
        once = httpx.Limits(max_keepalive_connections=0)  # llama.cpp's server closes connections
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=once) as http:
            while left:
                number, prompt = left.pop(0)
                found[number] = await ask(http, model, prompt, max_tokens)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began, [found[number] for number in range(len(prompts))]


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for a server's first answer; SystemExit if its process ends before."""
    while process.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=1).status_code == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"the server at {url} ended before it answered")


@dataclass
class Program:
    """A server process that is restarted if it has ended."""

    command: list[str]
    port: int
    model: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the server; starts it if necessary and waits for its first answer."""
        url = f"http://127.0.0.1:{self.port}"
        if self.process is None or self.process.poll() is not None:
            quiet = subprocess.DEVNULL
            self.process = subprocess.Popen(self.command, stdout=quiet, stderr=quiet)
            wait_until_healthy(url, self.process)
            asyncio.run(level(url, self.model, ["What is 1 plus 2?"], 1, 8))
        return url

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


@contextmanager
def programs(
    ours: Sequence[str], target: Path, model: str, others: Sequence[str] = ()
) -> Iterator[dict[str, Program]]:
    """Yield the servers by name, and stop them at the end.

    ours: more flags of `dflash serve`. others: of further servers, NAME=COMMAND; in the command
    {target} and {port} are filled in.
    """
    mine, theirs = free_port(), free_port()
    own = [str(Path(sys.executable).parent / "dflash"), "serve", "--port", str(mine)]
    other = [sys.executable, "-c", OTHER, "--model", str(target), "--port", str(theirs)]
    found = {
        "dflash serve": Program([*own, "--cache-ram", "0", *ours], mine, model),
        "mlx_lm.server": Program(other, theirs, str(target)),
    }
    for other in others:
        name, _, text = other.partition("=")
        port = free_port()
        command = [part.format(target=target, port=port) for part in shlex.split(text)]
        found[name] = Program(command, port, str(target))
    try:
        yield found
    finally:
        for program in found.values():
            program.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def copy_of(which: str, folder: Path, context: int | None = None) -> Path:
    """A copy of the bundled target or drafter in float32, with another context length if given."""
    shutil.copytree(bundled(which), folder, dirs_exist_ok=True)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    wide = {name: array.astype(mx.float32) for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), wide, {"format": "mlx"})
    if context is not None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = context
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
