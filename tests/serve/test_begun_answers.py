"""A last message of the assistant's is gone on from, blanks included, in all APIs and Python."""

from typing import Any

import pytest
import templates
from every_api import CHAT, PATHS, ask, body_of, reply_of
from scripted_server import HI, TOLD, bundled, pair_saying, server_of

import dflash_mlx

BEGUN = [*HI, {"role": "assistant", "content": "one, two "}]
REST = "\n\n  three, four"


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_is_continued(path: str) -> None:
    """Only the new text comes, with the blanks at its start."""
    pair = pair_saying(REST, BEGUN, strict=False)
    assert ask(server_of(pair), path, BEGUN).text == REST


def test_blanks_beside_tools() -> None:
    """Line breaks before the text of a new answer are cut there."""
    pair = pair_saying(REST, BEGUN, strict=False, tools=TOLD)
    assert ask(server_of(pair), CHAT, BEGUN, tools=TOLD).text == REST


def test_fields_of_vllm() -> None:
    """They ask for what is done anyway; the answer lists them."""
    pair = pair_saying(REST, BEGUN, strict=False)
    fields: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    reply = reply_of(server_of(pair), CHAT, body_of(CHAT, BEGUN, **fields))
    assert reply.json()["choices"][0]["message"]["content"] == REST
    assert [name.split()[0] for name in reply.json()["dflash"]["ignored"]] == [*fields]


@pytest.mark.parametrize("path", PATHS)
def test_a_form_is_refused(path: str) -> None:
    """It would hold for the rest alone."""
    body = body_of(path, BEGUN, guided_choice=["a"])
    reply = reply_of(server_of(bundled()), path, body)
    assert reply.status_code == 400
    assert "goes on from a text" in reply.text


def test_a_last_call_is_refused() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [*HI, {"role": "assistant", "content": "so", "tool_calls": [call]}]
    reply = reply_of(server_of(bundled()), CHAT, body_of(CHAT, messages))
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
