"""Servers of scripted pairs for tests, and requests to them in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import tiny
from httpx2 import ASGITransport, AsyncClient
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from scripted_pair import speaking
from serving import settings_of

import dflash_mlx
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.serve.app import Server

URL = "http://localhost"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
# Like Qwen 3's template: tools come first, and empty tags turn thinking off. Keeps past thinking.
TEMPLATE = (
    "{% if tools %}[tools]{% for t in tools %}{{ t.function | tojson }}{% endfor %}<|end|>"
    "{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if m.name %}({{ m.name }}){% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)
ADD = {
    "name": "add",
    "description": "the sum of two numbers",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
TOLD = [{"type": "function", "function": ADD}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "}"]}}\n</tool_call>'
HI: Any = [{"role": "user", "content": "hi"}]


@cache
def bundled() -> Pair:
    return dflash_mlx.load()


def server_of(pair: Pair, **settings: Any) -> Server:
    return Server(pair, settings_of("tiny", settings))


def tool_tokenizer(template: str = TEMPLATE) -> TokenizerWrapper:
    """A byte tokenizer with thinking, and with tool calls as JSON."""
    detokenizer: Any = BPEStreamingDetokenizer  # annotated too narrowly in mlx-lm
    return TokenizerWrapper(
        tiny.byte_tokenizer("<|end|>", MARKS, template)._tokenizer,
        detokenizer,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
        tool_parser=json_tools.parse_tool_call,
    )


def pair_saying(
    said: str,
    messages: list[dict[str, Any]],
    tokenizer: TokenizerWrapper | None = None,
    *,
    strict: bool = True,
    **options: Any,
) -> Pair:
    """A pair that generates `said` after these messages, and nonsense after others.

    If `strict`, its drafter raises AssertionError when prompt or answer differ. The default
    tokenizer is `tool_tokenizer()`.
    """
    tokenizer = tokenizer or tool_tokenizer()
    target = tiny.make_target("qwen3", vocab_size=272)
    target = tiny.with_ends(target, tokenizer)
    pair = tiny.make_pair(target, None, "", None, tokenizer)
    prompt = pair.chat_tokens(messages, GenerationOptions(**options))
    return speaking(said, tokenizer, prompt, strict=strict)


def transport(server: Server) -> AsyncClient:
    """The HTTP client for the clients' packages; calls the server in this process."""
    return AsyncClient(transport=ASGITransport(app=server.app))


@asynccontextmanager
async def listening(server: Server, path: str, body: Any) -> AsyncIterator["Listener"]:
    """Send a request and yield a reader of its stream; disconnects at the end."""
    listener = Listener()
    task = asyncio.create_task(server.app(scope_of(path), listener.receive(body), listener.send))
    try:
        yield listener
    finally:
        listener.gone.set()
        await asyncio.wait_for(task, 60)


class Listener:
    """The client's side of an ASGI connection."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._came: asyncio.Queue[bytes] = asyncio.Queue()

    def receive(self, body: Any) -> Callable[[], Any]:
        """ASGI's `receive`: the body, then a disconnect once `gone` is set."""
        left = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def messages() -> dict[str, Any]:
            if left:
                return left.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        return messages

    async def send(self, message: Any) -> None:
        if message.get("body"):
            await self._came.put(message["body"])

    async def next(self) -> str:
        return (await asyncio.wait_for(self._came.get(), 60)).decode()


def scope_of(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }


async def events_of(server: Server, path: str, body: Any) -> list[tuple[str | None, Any]]:
    """Request a stream; returns the name and the data of each event."""
    async with transport(server) as client:
        reply = await client.post(URL + path, json=body)
    assert reply.status_code == 200, reply.text
    found = []
    for part in reply.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if "data" in lines:
            data = lines["data"]
            found.append((lines.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found
