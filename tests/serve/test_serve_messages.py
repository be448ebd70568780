"""Anthropic's API by its own client: what is asked reaches the model, what it says comes back."""

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from messages_api import PATH, TOOL, ask, ask_streamed, client_of
from scripted_server import CALL, HI, TOLD, events_of, pair_saying, server_of
from serving import fail_to_answer

from dflash_mlx.serve.anthropic_messages import chat_messages
from dflash_mlx.serve.protocol import Limits

both = pytest.mark.parametrize("asked", [ask, ask_streamed])


@both
def test_thinking_text_and_calls(asked: Callable[..., Any]) -> None:
    """Each is a block of its own, in order; white space beside calls is no block."""
    said = f"<think>\nhm, ü</think>\n\nLook.\n{CALL}\n{CALL}"
    found = asked(server_of(pair_saying(said, HI, tools=TOLD)), tools=[TOOL])
    thinking, text, *calls = found.content
    assert (thinking.type, thinking.thinking) == ("thinking", "hm, ü")
    assert thinking.signature
    assert (text.type, text.text) == ("text", "Look.")
    assert [(call.type, call.name, call.input) for call in calls] == [
        ("tool_use", "add", {"a": 1, "b": [2, "}"]})
    ] * 2
    assert len({call.id for call in calls}) == 2
    assert found.stop_reason == "tool_use"


@both
def test_one_call_at_most(asked: Callable[..., Any]) -> None:
    """The first call ends the answer of a client that takes no second one."""
    server = server_of(pair_saying(f"Look.{CALL} {CALL}, and", HI, tools=TOLD))
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    found = asked(server, tools=[TOOL], tool_choice=choice)
    assert [block.type for block in found.content] == ["text", "tool_use"]
    assert (found.content[0].text, found.content[1].input["a"]) == ("Look.", 1)
    assert found.stop_reason == "tool_use"
    assert server.models.admission.running == 0


def test_events_are_as_published() -> None:
    """Names, order and fields of a stream's events, and what stands beside them."""
    said = f"<think>hm</think>Look.{CALL}"
    pair = pair_saying(said, HI, tools=TOLD)
    pair.engine.scheduler.prompt_chunks.sizes = {0: 64}
    server = server_of(pair, keepalive=1e-6)
    body = {"model": "tiny", "max_tokens": 200, "messages": HI, "stream": True, "tools": [TOOL]}
    found = asyncio.run(events_of(server, PATH, {**body, "return_progress": True}))
    assert all(name == data["type"] for name, data in found)
    pings = [data for name, data in found if name == "ping"]
    assert {"type": "ping"} in pings
    read = [data["prompt_progress"]["processed"] for data in pings if "prompt_progress" in data]
    assert read[:-1] == list(range(0, read[-1], 64))
    events = [data for name, data in found if name != "ping"]
    kinds = [data["type"].removeprefix("content_") for data in events]
    assert [kind for n, kind in enumerate(kinds) if kinds[n - 1] != kind] == [
        "message_start",
        *["block_start", "block_delta", "block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    start = events[0]["message"]
    assert start["content"] == []
    assert start["usage"]["output_tokens"] == 0
    opened = [data["content_block"] for data in events if "content_block" in data]
    number = opened[2].pop("id")
    assert number.startswith("toolu_")
    assert opened == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "name": "add", "input": {}},
    ]
    deltas = [data["delta"] for data in events if data["type"] == "content_block_delta"]
    order = [delta["type"] for delta in deltas]
    assert [kind for n, kind in enumerate(order) if order[n - 1] != kind] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
    ]
    assert order.count("input_json_delta") == 1  # when it is complete
    ending = events[-2]
    assert ending["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert ending["usage"]["input_tokens"] == start["usage"]["input_tokens"]
    assert ending["dflash"]["mode"] == "dflash"
    assert ending["timings"]["draft_n_accepted"] > 0


@both
def test_a_turn_with_results_goes_back(asked: Callable[..., Any]) -> None:
    """Blocks of all kinds reach the chat template; the drafter knows no other prompt."""
    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    messages: Any = [
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "well", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Look."},
                use,
                {**use, "id": "c2"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "such"}],
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "text", "text": "and"},
            ],
        },
        {"role": "user", "content": "now?"},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    told = [
        {"role": "system", "content": "be\nshort"},
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": "Look.",
            "reasoning_content": "well",
            "tool_calls": [call, call],
        },
        {"role": "tool", "name": "add", "content": "1"},
        {"role": "tool", "name": "add", "content": "error: no\nsuch"},
        {"role": "user", "content": "and\nnow?"},
    ]
    server = server_of(pair_saying("3", told, tools=TOLD, think=False))
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b3;"},
        {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "short"},
    ]
    found = asked(
        server,
        messages=messages,
        system=system,
        tools=[{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "auto"},
        thinking={"type": "disabled"},
        metadata={"user_id": "u"},
        service_tier="auto",
    )
    assert [block.text for block in found.content] == ["3"]
    assert found.stop_reason == "end_turn"


@both
def test_stop_sequences(asked: Callable[..., Any]) -> None:
    """The one that was found is named; an answer that ends by itself has none."""
    server = server_of(pair_saying("one two three", HI))
    found = asked(server, stop_sequences=["three", "two"])
    assert (found.content[0].text, found.stop_reason) == ("one ", "stop_sequence")
    assert found.stop_sequence == "two"
    found = asked(server, stop_sequences=["four"])
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)


@both
def test_answers_that_are_cut(asked: Callable[..., Any]) -> None:
    """By max_tokens, in a call too; by the context, whatever max_tokens says."""
    server = server_of(pair_saying(CALL, HI, tools=TOLD))
    found = asked(server, tools=[TOOL], max_tokens=50)
    assert (found.stop_reason, found.content[0].name) == ("max_tokens", "add")
    pair = pair_saying("one two three", HI)
    found = asked(server_of(pair), max_tokens=7)
    assert (found.stop_reason, found.content[0].text) == ("max_tokens", "one two")
    server = server_of(pair, context=found.usage.input_tokens + 7)
    found = asked(server, max_tokens=8000)
    assert found.stop_reason == "model_context_window_exceeded"
    assert found.content[0].text == "one two"


def test_a_call_that_is_cut_is_told() -> None:
    """What was written of it stays readable."""
    server = server_of(pair_saying(CALL, HI, tools=TOLD))
    found = ask(server, tools=[TOOL], max_tokens=50)
    assert found.content[0].input == {}
    assert found.content[0].partial_json.startswith('{"a": 1')


@both
def test_thinking_can_be_switched_and_left_out(asked: Callable[..., Any]) -> None:
    """`disabled` shuts it in the template; `omitted` sends none of its text."""
    pair = pair_saying("<think>hm</think>yes", HI, think=True)
    shown = {"type": "enabled", "budget_tokens": 1024}
    found = asked(server_of(pair), thinking=shown)
    assert [block.type for block in found.content] == ["thinking", "text"]
    found = asked(server_of(pair), thinking={"type": "adaptive", "display": "omitted"})
    assert (found.content[0].thinking, found.content[1].text) == ("", "yes")
    assert found.content[0].signature
    pair = pair_saying("yes", HI, think=False)
    found = asked(server_of(pair), thinking={"type": "disabled"})
    assert [block.type for block in found.content] == ["text"]


def test_count_tokens() -> None:
    told = [{"role": "system", "content": "be short"}, *HI]
    server = server_of(pair_saying("yes", told, tools=TOLD))
    parts: Any = {"model": "tiny", "messages": HI, "system": "be short", "tools": [TOOL]}
    counted = asyncio.run(client_of(server).messages.count_tokens(**parts)).input_tokens
    usage = ask(server, **parts).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    without = asyncio.run(client_of(server).messages.count_tokens(model="tiny", messages=HI))
    assert without.input_tokens < counted


def test_beta_and_its_query() -> None:
    """Claude Code asks at /v1/messages?beta=true."""
    server = server_of(pair_saying("yes", HI))
    client = client_of(server)
    asked: Any = {"model": "tiny", "messages": HI}
    found = asyncio.run(
        client.beta.messages.create(
            **asked,
            max_tokens=20,
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        )
    )
    assert found.content[0].text == "yes"  # type: ignore[union-attr]
    counted = asyncio.run(client.beta.messages.count_tokens(**asked))
    assert counted.input_tokens == found.usage.input_tokens


IMAGE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages is empty"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": IMAGE}]}]},
     r"messages\.0\.content\.0 is of the type 'image'"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, r"messages\.0\.role"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{"name": "add"}]}, r"tools\.0\.input_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "sometimes"}}, "tool_choice"),
    ({"thinking": {"type": "deeply"}}, r"thinking\.type"),
    ({"extra_body": {"temperature": 7.0}}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences must be"),
    ({"extra_body": {"response_format": {"type": "json_object"}}},
     r"response_format .*use output_config\.format"),
    ({"extra_body": {"stop": ["x"]}}, "stop is .*use stop_sequences"),
    ({"extra_body": {"context_management": {"edits": [{"type": "compact"}]}}}, "compact"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_cannot_be_had_is_named(body: dict[str, Any], what: str) -> None:
    """Guards silent changes of an answer: a 400 of Anthropic's shape says what it is about."""
    server = server_of(pair_saying("yes", HI))
    with pytest.raises(anthropic.BadRequestError, match=what) as caught:
        ask(server, **body)
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert server.models.admission.running == 0


def test_errors_are_the_clients_classes() -> None:
    """Other models, keys, sizes and crowds; a long prompt in the words that clients look for."""
    pair = pair_saying("yes", HI)
    with pytest.raises(anthropic.NotFoundError, match="'other' is not served"):
        ask(server_of(pair), model="other")
    with pytest.raises(anthropic.AuthenticationError):
        ask(server_of(pair, api_key="secret"))
    with pytest.raises(anthropic.RequestTooLargeError):
        ask(server_of(pair, limits=Limits(body_bytes=10)))
    with pytest.raises(anthropic.RateLimitError):
        ask(server_of(pair, max_sequences=0, limits=Limits(queue=0)))
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 9 max"):
        ask(server_of(pair, context=10))
    found = asyncio.run(
        client_of(server_of(pair, api_key="secret"), "secret").messages.create(
            model="tiny",
            max_tokens=9,
            messages=HI,
        )
    )
    assert found.content


def test_an_error_in_mid_stream_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head is sent by then; the client raises what the event says."""
    server = server_of(pair_saying("yes", HI))
    fail_to_answer(server, monkeypatch)
    with pytest.raises(anthropic.APIStatusError, match=r"the cable is out. \(plug it in\)"):
        ask_streamed(server)
    with pytest.raises(anthropic.InternalServerError):
        ask(server)


def test_a_thread_is_refused_as_the_client_expects() -> None:
    """Its tool runner asks for a thread first. Told by these details, it goes on without one."""
    server = server_of(pair_saying("Hi", HI))
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(server, extra_body={"thread": {"type": "create"}})
    error: Any = refused.value.body
    assert error["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


def test_only_the_line_of_the_billing_note_is_left_out() -> None:
    """A proxy may join the blocks of a system prompt: what follows the note counts."""
    note = "x-anthropic-billing-header: cch=1a2b3;"
    for system in (f"{note}\nbe short", [{"type": "text", "text": f"{note}\nbe short"}]):
        told, _ = chat_messages(system, HI)
        assert told == {"role": "system", "content": "be short"}
    assert [message["role"] for message in chat_messages(note, HI)] == ["user"]
