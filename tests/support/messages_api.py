"""Requests to Anthropic's API with Anthropic's client, in this process."""

import asyncio
from typing import Any

from anthropic import AsyncAnthropic
from scripted_server import ADD, HI, URL, transport

from dflash_mlx.serve.app import Server

PATH = "/v1/messages"
BODY: Any = {"model": "tiny", "max_tokens": 200, "messages": HI}
TOOL: Any = {
    "name": "add",
    "description": ADD["description"],
    "input_schema": ADD["parameters"],
}


def client_of(server: Server, key: str = "none") -> AsyncAnthropic:
    return AsyncAnthropic(
        api_key=key,
        base_url=URL,
        http_client=transport(server),
        max_retries=0,
    )


def ask(server: Server, **body: Any) -> Any:
    body = {**BODY, **body}
    return asyncio.run(client_of(server).messages.create(**body))


def ask_streamed(server: Server, **body: Any) -> Any:
    """Request a stream; returns the message that the client builds from it."""
    body = {**BODY, **body}

    async def read() -> Any:
        async with client_of(server).messages.stream(**body) as stream:
            return await stream.get_final_message()

    return asyncio.run(read())
