"""Chats that a template refuses: system prompts and neighbours are joined there, only there."""

import asyncio
from typing import Any

import pytest
import templates
import tiny
from scripted_server import URL, pair_saying, server_of, transport
from templates import template_of

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.session import Session


def chat(text: str) -> list[dict[str, Any]]:
    """A chat in short: `s:be u:why a:so`."""
    roles = {"s": "system", "u": "user", "a": "assistant", "d": "developer"}
    parts = [part.split(":") for part in text.split()]
    return [{"role": roles[role], "content": content} for role, content in parts]


ORDERS = (
    "u:one",
    "s:be u:one",
    "s:be",
    "u:one u:two",
    "s:be u:one u:two",
    "u:one a:yes u:two",
    "s:be u:one a:yes u:two",
    "u:one a:yes a:no u:two",
    "s:be u:one a:yes s:now u:two",
    "u:one a:yes u:two s:now",
    "d:be u:one",
)
# What is written where the family's own template refuses an order.
JOINED = {
    "mistral_1": {
        "s:be u:one": "<s>[INST] be\n\none [/INST]",
        "s:be": "<s>[INST] be [/INST]",
        "u:one u:two": "<s>[INST] one\n\ntwo [/INST]",
        "s:be u:one u:two": "<s>[INST] be\n\none\n\ntwo [/INST]",
        "s:be u:one a:yes u:two": "<s>[INST] be\n\none [/INST]yes<|stop|> [INST] two [/INST]",
        "u:one a:yes a:no u:two": "<s>[INST] one [/INST]yes\n\nno<|stop|> [INST] two [/INST]",
        "s:be u:one a:yes s:now u:two": (
            "<s>[INST] be\n\none [/INST]yes<|stop|> [INST] now\n\ntwo [/INST]"
        ),
        "u:one a:yes u:two s:now": "<s>[INST] one [/INST]yes<|stop|> [INST] two\n\nnow [/INST]",
        "d:be u:one": "<s>[INST] be\n\none [/INST]",
    },
    "mistral_3": {
        "u:one u:two": "<s>[INST] one\n\ntwo[/INST]",
        "s:be u:one u:two": "<s>[INST] be\n\none\n\ntwo[/INST]",
        "u:one a:yes a:no u:two": "<s>[INST] one[/INST] yes\n\nno<|stop|>[INST] two[/INST]",
        "s:be u:one a:yes s:now u:two": (
            "<s>[INST] one[/INST] yes<|stop|>[INST] be\n\nnow\n\ntwo[/INST]"
        ),
        "u:one a:yes u:two s:now": "<s>[INST] one[/INST] yes<|stop|>[INST] two\n\nnow[/INST]",
        "d:be u:one": "<s>[INST] be\n\none[/INST]",
    },
    "mistral_small": {
        "u:one u:two": "<s>[INST]one\n\ntwo[/INST]",
        "s:be u:one u:two": "<s>[SYSTEM_PROMPT]be[/SYSTEM_PROMPT][INST]one\n\ntwo[/INST]",
        "u:one a:yes a:no u:two": "<s>[INST]one[/INST]yes\n\nno<|stop|>[INST]two[/INST]",
        "s:be u:one a:yes s:now u:two": (
            "<s>[SYSTEM_PROMPT]be[/SYSTEM_PROMPT][INST]one[/INST]yes<|stop|>[INST]now\n\ntwo[/INST]"
        ),
        "u:one a:yes u:two s:now": "<s>[INST]one[/INST]yes<|stop|>[INST]two\n\nnow[/INST]",
        "d:be u:one": "<s>[INST]be\n\none[/INST]",
    },
    "gemma_2": {
        "s:be u:one": "<bos><start_of_turn>user\nbe\n\none<end_of_turn>\n",
        "s:be": "<bos><start_of_turn>user\nbe<end_of_turn>\n",
    },
    "gemma_3": {
        "u:one u:two": "<bos><start_of_turn>user\none\n\ntwo<end_of_turn>\n",
        "s:be u:one u:two": "<bos><start_of_turn>user\nbe\n\none\n\ntwo<end_of_turn>\n",
    },
    "llama_2": {
        "s:be u:one u:two": "<s>[INST] <<SYS>>\nbe\n<</SYS>>\n\none\n\ntwo [/INST]",
    },
}


@pytest.mark.parametrize(
    "family",
    ["mistral_1", "mistral_3", "mistral_small", "gemma_2", "gemma_3", "phi", "llama_2", "granite",
     "olmo_2", "smollm3"],
)  # fmt: skip
def test_every_order_is_written(family: str) -> None:
    """What a template accepts is its own text; what it refuses is joined with nothing lost."""
    template = template_of(family)
    stock = templates.tokenizer_of(family)._tokenizer
    for order in ORDERS:
        messages = chat(order)
        written = template.write(messages, add_generation_prompt=False)
        try:
            own = stock.apply_chat_template(messages, tokenize=False)
        except Exception:
            assert family in JOINED, order
            assert order not in JOINED[family] or written == JOINED[family][order]
            assert all(message["content"] in written for message in messages), order
        else:
            assert written == own
            assert order not in JOINED.get(family, ())
        assert messages == chat(order)  # the caller's messages stay as they are
        whole = template.write(messages)
        assert whole.startswith(written.removesuffix("<|stop|>")), order


def test_a_longer_chat_begins_with_the_shorter_one() -> None:
    """What was read for one turn is read again for the next one by nobody."""
    for family in ("mistral_1", "gemma_2"):
        template = template_of(family)
        first = template.write(chat("s:be u:one"), add_generation_prompt=False)
        assert template.write(chat("s:be u:one a:yes u:two")).startswith(first)


CALL = {"type": "function", "id": "toolu_12345", "function": {"name": "add", "arguments": {}}}
RESULT = {"role": "tool", "tool_call_id": "toolu_12345", "content": "3"}


def test_tools() -> None:
    """Calls keep their results, with ids as Mistral's templates want them, and joined ones stay."""
    template = template_of("mistral_3")
    twice = {**CALL, "id": "toolu_67890"}
    said = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    again = {"role": "assistant", "content": "", "tool_calls": [twice]}
    options = GenerationOptions(tools=[CALL])
    messages = [*chat("u:go"), said, RESULT, *chat("a:done u:one u:two")]
    written = template.write(messages, options)
    assert written.startswith("<s>[INST] go[/INST][TOOL_CALLS] add:call00001<|stop|>")
    assert "[TOOL_RESULTS]3:call00001[/TOOL_RESULTS] done<|stop|>" in written
    assert written.endswith("[/AVAILABLE_TOOLS][INST] one\n\ntwo[/INST]")
    second = {**RESULT, "tool_call_id": "toolu_67890"}
    both = template.write([*chat("u:go"), said, again, RESULT, second, *chat("a:x u:one u:two")])
    assert "[TOOL_CALLS] add:call00001add:call00002<|stop|>" in both
    assert "[TOOL_RESULTS]3:call00001[/TOOL_RESULTS][TOOL_RESULTS]3:call00002[/TOOL" in both
    good = {**CALL, "id": "Abcdefgh1"}
    kept = [*chat("u:go"), {**said, "tool_calls": [good]}, {**RESULT, "tool_call_id": "Abcdefgh1"}]
    assert "add:Abcdefgh1<|stop|>[TOOL_RESULTS]3:Abcdefgh1" in template.write(kept)


def test_what_stays_refused() -> None:
    """A chat that begins with an answer, and the results of tools where there is no such role."""
    for messages, reason in (
        (chat("a:yes u:one"), "must alternate"),
        ([*chat("u:one"), RESULT, *chat("u:two")], "only user and assistant"),
    ):
        with pytest.raises(DFlashError, match=rf"these messages \({reason}\)") as caught:
            template_of("mistral_1").write(messages)
        assert caught.value.hint


def test_sessions_share_what_they_have_read() -> None:
    """Layers that cannot go back keep the system prompt and earlier turns, as with any template."""
    tokenizer = templates.tokenizer_of("gemma_2")
    target = tiny.make_target("qwen3_5", vocab_size=templates.VOCAB)
    pair = tiny.make_pair(tiny.with_ends(target, tokenizer), None, "a", None, tokenizer)
    session = Session(pair, mode="baseline")
    first, second = chat("s:be u:one u:two"), chat("s:be u:one u:two a:yes u:three")
    for messages in (first, second):
        list(session.stream(messages, max_tokens=2))
    read = pair.encode(pair.template.write(first, add_generation_prompt=False))
    assert session.stats.cached_tokens >= len(read)


def test_every_api() -> None:
    """The answer is scripted for the joined chat's tokens; others would get nonsense."""
    pair = pair_saying(
        "sure", [{"role": "user", "content": "be\n\none\n\ntwo"}], templates.tokenizer_of("gemma_2")
    )
    system, asked = chat("s:be"), chat("u:one u:two")
    joined = [{"role": "user", "content": "one\n\ntwo"}]
    cold = {"model": "tiny", "temperature": 0}
    texts: dict[str, tuple[dict[str, Any], str]] = {
        "/v1/chat/completions": (
            {**cold, "messages": [*system, *asked]},
            "choices.0.message.content",
        ),
        "/v1/messages": (
            {**cold, "messages": joined, "system": "be", "max_tokens": 9},  # joins these itself
            "content.0.text",
        ),
        "/v1/responses": (
            {**cold, "input": asked, "instructions": "be"},
            "output.0.content.0.text",
        ),
        "/api/chat": (
            {"model": "tiny", "options": {"temperature": 0}, "messages": [*system, *asked]},
            "message.content",
        ),
    }

    async def post(path: str, body: dict[str, Any]) -> Any:
        async with transport(server_of(pair)) as client:
            return (await client.post(URL + path, json={**body, "stream": False})).json()

    for path, (body, place) in texts.items():
        found = asyncio.run(post(path, body))
        for part in place.split("."):
            found = found[int(part) if part.isdigit() else part]
        assert found == "sure", path
