"""Small things of requests: the name of a field in an error, no limit, and a compressed body."""

import gzip
import json
from typing import Any

import pytest
from every_api import reply_of
from scripted_server import HI, bundled, server_of


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/completions", "prompt"), ("/v1/responses", "input"), ("/v1/chat/completions", None)],
)
def test_an_error_names_the_field_of_its_api(path: str, name: str | None) -> None:
    long = "word " * 30_000
    body = {name: long} if name else {"messages": [{"role": "user", "content": long}]}
    error = reply_of(server_of(bundled()), path, body).json()["error"]
    assert error["param"] == (name or "messages")
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI, "max_tokens": -1}),
        ("/v1/chat/completions", {"messages": HI, "max_completion_tokens": -1}),
        ("/v1/completions", {"prompt": "2 + 3 = ", "max_tokens": -1, "stop": ["\n", "r"]}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": -1}),
        ("/v1/messages", {"messages": HI, "max_tokens": -1}),
        ("/api/chat", {"messages": HI, "options": {"num_predict": -1}, "stream": False}),
    ],
)
def test_no_limit(path: str, body: dict[str, Any]) -> None:
    """The rest of the context is the limit, and nothing was clipped."""
    reply = reply_of(
        server_of(bundled()), path, body | ({} if "/api" in path else {"temperature": 0})
    )
    assert reply.status_code == 200, reply.text
    dflash = reply.json()["dflash"]
    assert dflash["max_tokens"] > 3800
    assert "clipped_from" not in dflash


def test_a_compressed_body() -> None:
    raw = gzip.compress(json.dumps({"messages": HI}).encode())
    reply = reply_of(
        server_of(bundled()), "/v1/chat/completions", raw, **{"content-encoding": "gzip"}
    )
    assert reply.status_code == 415
    assert "gzip" in reply.json()["error"]["message"]
