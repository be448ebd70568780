"""OpenAI's responses API by its own client: stateless, whole and streamed."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from responses_api import PATH, TOOL, ask, ask_streamed
from scripted_server import ADD, CALL, HI, TOLD, events_of, pair_saying, server_of
from serving import fail_to_answer

PATCH: Any = {
    "type": "custom",
    "name": "patch",
    "description": "Changes a file.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
}
PATCH_TOLD = {
    "name": "patch",
    "description": "Changes a file.\nThe input follows this grammar:\nstart: /.+/s",
    "parameters": {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "the text of the call"}},
        "required": ["input"],
    },
}
both = pytest.mark.parametrize("asked", [ask, ask_streamed])


@both
def test_reasoning_text_and_calls(asked: Callable[..., Any]) -> None:
    """Each is an item of its own, in order; the response is what the client's types say."""
    said = f"<think>\nhm, ü</think>\n\nLook.\n{CALL}\n{CALL}"
    found = asked(server_of(pair_saying(said, HI, tools=TOLD)), tools=[TOOL])
    reasoning, message, *calls = found.output
    assert reasoning.type == "reasoning"
    assert [(part.type, part.text) for part in reasoning.content] == [("reasoning_text", "hm, ü")]
    assert reasoning.summary == []
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert found.output_text == "Look."
    assert [(c.type, c.name, c.arguments) for c in calls] == [
        ("function_call", "add", '{"a": 1, "b": [2, "}"]}')
    ] * 2
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == 2
    assert (found.status, found.error, found.incomplete_details) == ("completed", None, None)
    assert found.store is False
    assert found.tools[0].name == "add"
    assert 0 < found.usage.output_tokens_details.reasoning_tokens < found.usage.output_tokens
    assert found.dflash["mode"] == "dflash"
    assert found.dflash["ignored"] == []
    assert found.timings["draft_n_accepted"] > 0
    Response.model_validate(found.to_dict())


def test_a_summary_is_all_of_the_thinking() -> None:
    """Clients that ask for a summary show nothing else; nothing is left out of it."""
    pair = pair_saying("<think>hm</think>yes", HI)
    for asked in (ask, ask_streamed):
        found = asked(server_of(pair), reasoning={"summary": "auto"})
        assert [part.text for part in found.output[0].summary] == ["hm"]
        assert found.output_text == "yes"


def test_events_are_as_published() -> None:
    """Names, order and places of a stream's events."""
    pair = pair_saying(f"<think>hm</think>Look.{CALL}", HI, tools=TOLD)
    pair.engine.scheduler.prompt_chunks.sizes = {0: 64}
    body = {"input": "hi", "stream": True, "tools": [TOOL], "return_progress": True}
    found = asyncio.run(events_of(server_of(pair), PATH, body))
    assert all(name == data["type"] for name, data in found)
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    read = [data["prompt_progress"]["processed"] for _, data in found if "prompt_progress" in data]
    assert read[:-1] == list(range(0, read[-1], 64))
    kinds = [name.removeprefix("response.") for name, _ in found if name]
    assert [kind for n, kind in enumerate(kinds) if n == 0 or kinds[n - 1] != kind] == [
        "created",
        "in_progress",
        *["output_item.added", "content_part.added"],
        *["reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"],
        *["output_item.added", "content_part.added"],
        *["output_text.delta", "output_text.done", "content_part.done", "output_item.done"],
        "output_item.added",
        *["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
        "completed",
    ]
    assert kinds.count("function_call_arguments.delta") == 1  # when they are complete
    places = [data["output_index"] for _, data in found if "output_index" in data]
    assert places == sorted(places)
    ids = {data["output_index"]: data["item_id"] for _, data in found if "item_id" in data}
    assert [item["id"] for item in found[-1][1]["response"]["output"]] == list(ids.values())


@both
def test_a_turn_with_results_goes_back(asked: Callable[..., Any]) -> None:
    """Items of all kinds reach the chat template; the drafter knows no other prompt."""
    told_tools = [{**ADD, "name": "mcp__add"}, PATCH_TOLD]
    call = {"function": {"name": "mcp__add", "arguments": {"a": 1}}}
    patch = {"function": {"name": "patch", "arguments": {"input": "*** Begin"}}}
    told = [
        {"role": "system", "content": "be short\n\nand kind"},
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": "Look.",
            "reasoning_content": "well",
            "tool_calls": [call, patch],
        },
        {"role": "tool", "name": "mcp__add", "content": "1"},
        {"role": "tool", "name": "patch", "content": "done"},
        {"role": "assistant", "content": "", "reasoning_content": "so"},
        {"role": "user", "content": "now?"},
    ]
    tools = [{"type": "function", "function": one} for one in told_tools]
    server = server_of(pair_saying("3", told, tools=tools))
    found = asked(
        server,
        instructions="be short",
        input=[
            {"type": "message", "role": "developer", "content": "and kind"},
            {"role": "user", "content": [{"type": "input_text", "text": "add"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "well"}],
                "encrypted_content": None,
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Look.", "annotations": []}],
            },
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "add",
                "namespace": "mcp",
                "arguments": '{"a": 1}',
            },
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {
                "type": "custom_tool_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "done"}],
            },
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}]},
            {"role": "user", "content": "now?"},
        ],
        tools=[
            {"type": "namespace", "name": "mcp", "description": "", "tools": [TOOL]},
            PATCH,
            {"type": "web_search"},
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        store=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        extra_body={"client_metadata": {"a": "b"}},
    )
    assert found.output_text == "3"
    assert [tool.name for tool in found.tools] == ["mcp__add", "patch"]
    assert found.dflash["ignored"][:2] == [
        "tools.1.format (the model is told of it, and not forced)",
        "tools.2 (web_search)",
    ]
    others = {line.partition(" (")[0] for line in found.dflash["ignored"][2:]}
    assert others == {"client_metadata", "include", "prompt_cache_key", "store"}


@both
def test_custom_tools_and_namespaces(asked: Callable[..., Any]) -> None:
    """A custom tool gets its text bare, a tool of a namespace its own name, as Codex asks."""
    said = (
        '<tool_call>{"name": "patch", "arguments": {"input": "*** \\"a\\"\\n+b"}}</tool_call>'
        '<tool_call>{"name": "mcp__add", "arguments": {}}</tool_call>'
    )
    tools = [
        {"type": "function", "function": one} for one in (PATCH_TOLD, {**ADD, "name": "mcp__add"})
    ]
    space = {"type": "namespace", "name": "mcp__", "description": "", "tools": [TOOL]}
    found = asked(server_of(pair_saying(said, HI, tools=tools)), tools=[PATCH, space])
    patch, call = found.output
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", '*** "a"\n+b')
    assert (call.type, call.namespace, call.name) == ("function_call", "mcp__", "add")


@both
def test_answers_that_are_cut(asked: Callable[..., Any]) -> None:
    """An incomplete response says why, and which item is not whole."""
    found = asked(server_of(pair_saying("one two", HI)), max_output_tokens=5)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.output_text, found.output[0].status) == ("one t", "incomplete")
    server = server_of(pair_saying(CALL, HI, tools=TOLD))
    found = asked(server, tools=[TOOL], max_output_tokens=50)
    assert found.output[0].status == "incomplete"
    assert found.output[0].arguments.startswith('{"a": 1')
    found = asked(
        server, tools=[TOOL], max_output_tokens=len(CALL) - len("<tool_call></tool_call>")
    )
    assert (found.status, found.output[0].status) == (
        "incomplete",
        "completed",
    )  # only the tag is cut
    found = asked(server_of(pair_saying("one two", HI)), extra_body={"stop": "two"})
    assert (found.status, found.output_text) == ("completed", "one ")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input is empty"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     r"input\.0\.content\.0 is of the type 'input_image'"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
    ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{"}]},
     r"input\.0\.arguments is not JSON"),
    ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "file_search"),
    ({"tools": [{"type": "local_shell"}]}, "local_shell"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice cannot be"),
    ({"text": {"format": {"type": "xml"}}}, r"text\.format"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 9.0}, "temperature"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_cannot_be_had_is_named(body: dict[str, Any], what: str) -> None:
    """Guards silent changes of an answer: a 400 of OpenAI's shape says what it is about."""
    server = server_of(pair_saying("yes", HI))
    with pytest.raises(openai.BadRequestError, match=what) as caught:
        ask(server, **body)
    assert caught.value.type == "invalid_request_error"
    assert server.models.admission.running == 0


def test_errors_are_the_clients_classes() -> None:
    pair = pair_saying("yes", HI)
    with pytest.raises(openai.NotFoundError) as caught:
        ask(server_of(pair), model="other")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        ask(server_of(pair, api_key="secret"))
    with pytest.raises(openai.BadRequestError, match="prompt is too long") as long:
        ask(server_of(pair, context=10))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match=r"prompt is too long: about \d+") as long:
        ask(server_of(pair), input="many words " * 100_000)
    assert long.value.code == "context_length_exceeded"


def test_an_error_in_mid_stream_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head is sent by then: the response has failed, and says why."""
    server = server_of(pair_saying("yes", HI))
    fail_to_answer(server, monkeypatch)
    body = {"input": "hi", "stream": True}
    name, last = asyncio.run(events_of(server, PATH, body))[-1]
    assert (name, last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {
        "code": "server_error",
        "message": "the cable is out. (plug it in)",
    }
    with pytest.raises(openai.InternalServerError):
        ask(server)
