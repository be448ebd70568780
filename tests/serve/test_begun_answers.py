"""A last message of the assistant's is gone on from, blanks included, in all APIs and Python."""

import asyncio
from typing import Any

import pytest
import templates
from scripted_server import HI, TOLD, URL, bundled, pair_saying, server_of, transport

import dflash_mlx
from dflash_mlx.pair import Pair

BEGUN = [*HI, {"role": "assistant", "content": "one, two "}]
REST = "\n\n  three, four"
APIS = {
    "/v1/chat/completions": ("messages", "max_tokens"),
    "/v1/responses": ("input", "max_output_tokens"),
    "/v1/messages": ("messages", "max_tokens"),
    "/api/chat": ("messages", "num_predict"),
}


def reply_of(pair: Pair, path: str, messages: Any = BEGUN, **more: Any) -> Any:
    name, limit = APIS[path]
    body = {"model": "tiny", name: messages, limit: 60, "temperature": 0, "stream": False, **more}

    async def ask() -> Any:
        async with transport(server_of(pair)) as client:
            return await client.post(URL + path, json=body)

    return asyncio.run(ask())


def text_of(reply: Any) -> str:
    assert reply.status_code == 200, reply.text
    found = reply.json()
    if "choices" in found:
        return found["choices"][0]["message"]["content"]
    if "output" in found:
        return found["output"][0]["content"][0]["text"]
    return found["message"]["content"] if "message" in found else found["content"][0]["text"]


@pytest.mark.parametrize("path", APIS)
def test_an_answer_is_continued(path: str) -> None:
    """Only the new text comes, with the blanks at its start."""
    pair = pair_saying(REST, BEGUN, strict=False)
    assert text_of(reply_of(pair, path)) == REST


def test_blanks_beside_tools() -> None:
    """Line breaks before the text of a new answer are cut there."""
    pair = pair_saying(REST, BEGUN, strict=False, tools=TOLD)
    assert text_of(reply_of(pair, "/v1/chat/completions", tools=TOLD)) == REST


def test_fields_of_vllm() -> None:
    """They ask for what is done anyway; the answer lists them."""
    pair = pair_saying(REST, BEGUN, strict=False)
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    reply = reply_of(pair, "/v1/chat/completions", **fields)
    assert text_of(reply) == REST
    assert [name.split()[0] for name in reply.json()["dflash"]["ignored"]] == [*fields]


@pytest.mark.parametrize("path", APIS)
def test_a_form_is_refused(path: str) -> None:
    """It would hold for the rest alone."""
    reply = reply_of(bundled(), path, guided_choice=["a"])
    assert reply.status_code == 400
    assert "goes on from a text" in reply.text


def test_a_last_call_is_refused() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [*HI, {"role": "assistant", "content": "so", "tool_calls": [call]}]
    reply = reply_of(bundled(), "/v1/chat/completions", messages)
    assert reply.status_code == 400
    assert "results are missing" in reply.text


def test_python() -> None:
    pair = pair_saying(REST, BEGUN, strict=False)
    assert dflash_mlx.generate(pair, BEGUN, max_tokens=60).text == REST
    (found,) = pair.generate([BEGUN], max_tokens=60)
    assert found.text == REST


@pytest.mark.parametrize("family", templates.FAMILIES)
def test_templates_of_families(family: str) -> None:
    """The prompt ends with the text, after thinking that has ended."""
    text = templates.template_of(family).write(BEGUN)
    assert text.endswith("one, two ")
    assert text.rfind("</think>") >= text.rfind("<think>")
