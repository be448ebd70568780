"""What other projects' tests and clients rely on, by requests like theirs over a real socket."""

import json
from typing import Any

import httpx2
import openai
import pytest
from serving import Served

USER: Any = {"role": "user", "content": "What is 12 plus 7?"}
CHAT: Any = {"messages": [USER], "max_tokens": 9}


def events(served: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = httpx2.post(f"{served.url}{path}", json={**body, "stream": True})
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line[6:]) for line in lines]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 2}),
        ("/v1/completions", {"prompt": "The sky is", "max_tokens": 9}),
    ],
)
def test_only_usage_stands_without_a_choice(served: Served, path: str, body: Any) -> None:
    """Guards against `chunk.choices[0]`, with which many programs read streams, failing."""
    chunks = events(served, path, **body)
    assert all(chunk["choices"] for chunk in chunks)
    assert [n for n, chunk in enumerate(chunks) if "timings" in chunk] == [len(chunks) - 1]
    assert not any(chunk.get("usage") for chunk in chunks)
    assert chunks[-1]["dflash"]["mode"] == "dflash"
    chunks = events(served, path, **body, stream_options={"include_usage": True})
    assert [n for n, chunk in enumerate(chunks) if not chunk["choices"]] == [len(chunks) - 1]
    assert {"usage", "timings", "dflash"} < set(chunks[-1])
    assert {chunk["system_fingerprint"] for chunk in chunks} == {chunks[0]["system_fingerprint"]}


def test_addresses_without_v1(served: Served) -> None:
    """llama-server's tests, and clients that are given only host and port."""
    assert events(served, "/chat/completions", **CHAT)[-1]["timings"]["predicted_n"] == 9
    assert events(served, "/responses", input="hi")[-1]["type"] == "response.completed"
    assert httpx2.get(f"{served.url}/models").json()["data"][0]["id"] == "m"
    assert httpx2.get(f"{served.url}/models/m").json()["id"] == "m"


def test_progress_begins_and_ends(served: Served) -> None:
    """A prompt that is read in one pass shows its progress, too."""
    messages = [{"role": "user", "content": "Repeat: one two three four."}]
    for again in (False, True):
        chunks = events(
            served, "/v1/chat/completions", messages=messages, max_tokens=3, return_progress=True
        )
        told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        assert told[0]["processed"] == told[0]["cache"]
        assert (told[0]["cache"] > 4) == again
        assert told[-1]["processed"] == told[-1]["total"] > 0


def test_json_object_with_a_schema(client: openai.OpenAI) -> None:
    """llama-server's way to give a schema."""
    form: Any = {"type": "json_object", "schema": {"enum": ["left", "right"]}}
    found = client.chat.completions.create(
        model="m", messages=[USER], max_tokens=200, response_format=form
    )
    assert json.loads(found.choices[0].message.content or "") in ("left", "right")


def test_a_response_names_only_the_verbosity_that_was_asked(client: openai.OpenAI) -> None:
    """Open Responses knows no null there."""
    for text in ({}, {"verbosity": "low"}):
        found = client.responses.create(
            model="m", input="hi", max_output_tokens=5, extra_body={"text": text}
        )
        told: Any = found.model_dump(exclude_unset=True)["text"]
        assert told == {"format": {"type": "text"}, **text}
