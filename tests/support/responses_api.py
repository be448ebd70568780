"""Requests to OpenAI's responses API with OpenAI's client, in this process."""

import asyncio
from typing import Any

from openai import AsyncOpenAI
from scripted_server import ADD, URL, transport

from dflash_mlx.serve.app import Server

PATH = "/v1/responses"
BODY: Any = {"model": "tiny", "input": "hi"}
TOOL: Any = {"type": "function", **ADD}


def client_of(server: Server, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(
        api_key=key, base_url=f"{URL}/v1", http_client=transport(server), max_retries=0
    )


def ask(server: Server, **body: Any) -> Any:
    body = {**BODY, **body}
    return asyncio.run(client_of(server).responses.create(**body))


def ask_streamed(server: Server, **body: Any) -> Any:
    """Request a stream; returns its last response, after a check that the events add up to it."""
    body = {**BODY, **body}

    async def read() -> tuple[list[Any], Any]:
        async with client_of(server).responses.stream(**body) as stream:
            events: list[Any] = [event async for event in stream]
        return events, events[-1].response

    events, last = asyncio.run(read())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [bare(item) for item in done] == [bare(item) for item in last.output]
    for number, item in enumerate(last.output):
        deltas = [
            event.delta
            for event in events
            if event.type.endswith(".delta") and event.output_index == number
        ]
        assert "".join(deltas) == text_of(item)
    return last


def bare(item: Any) -> tuple[str, ...]:
    """The fields of an item that the client does not add itself."""
    return item.id, item.type, item.status, getattr(item, "call_id", ""), text_of(item)


def text_of(item: Any) -> str:
    if item.type == "function_call":
        return item.arguments
    if item.type == "custom_tool_call":
        return item.input
    return "".join(part.text for part in item.content or item.summary)
