"""Chats in every family's form: what a session reads, keeps for the next turn, and hands on."""

from collections.abc import Callable
from typing import Any

import pytest
import templates
import tiny
from scripted_pair import speaking

from dflash_mlx import api
from dflash_mlx.errors import UsageError
from dflash_mlx.options import Mode
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session

MODES: tuple[Mode, Mode] = ("dflash", "baseline")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"


def family_pair(family: str, form: str) -> Pair:
    target = tiny.make_target(family, vocab_size=templates.VOCAB)
    tokenizer = templates.tokenizer_of(form)
    target = tiny.with_ends(target, tokenizer)
    drafter = tiny.random_drafter(target)
    return tiny.make_pair(target, drafter, family, "random", tokenizer)


def scripted(form: str, said: str, messages: list[dict[str, Any]], **options: Any) -> Pair:
    """A pair whose target answers these messages with a text and <|stop|>."""
    tokenizer = templates.tokenizer_of(form)
    target = tiny.make_target("qwen3", vocab_size=templates.VOCAB)
    target = tiny.with_ends(target, tokenizer)
    alone = tiny.make_pair(target, None, "", None, tokenizer)
    prompt = Session(alone, mode="baseline").tokens(messages, **options)
    return speaking(said, tokenizer, prompt)


@pytest.mark.parametrize("block_size", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("form", "said", "text", "thinking"),
    [
        ("gpt_oss", THOUGHT + "<|channel|>final<|message|>yes<|return|>never", "yes", "hm"),
        ("gpt_oss", THOUGHT + " to=functions.f<|message|>{}<|call|>never", "to=functions.f", "hm"),
        ("muse", " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes<|eot|>no",
         "yes", "hm"),
        ("minimax", "hm</think>yes", "yes", "hm"),
        ("gemma", "yes", "yes", ""),
        ("qwen", "<think>hm</think>yes", "yes", "hm"),
        ("qwen", "yes, <think>", "yes, <think>", ""),
    ],
)  # fmt: skip
def test_an_answer(form: str, said: str, text: str, thinking: str, block_size: int) -> None:
    """Blocks may cut the marks anywhere; the end of an answer ends it, that of a message does not.

    The question has a mark in it, which opens nothing.
    """
    messages = [{"role": "user", "content": "what is <think> or <|start|>?"}]
    result = api.generate(scripted(form, said, messages), messages, block_size=block_size)
    assert result.text.removesuffix("<|message|>{}") == text
    assert result.thinking == thinking
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("family", "form"),
    [("gpt_oss", "gpt_oss"), ("muse_glimmer", "muse"), ("gemma4_text", "gemma"),
     ("qwen3_5", "qwen"), ("minimax", "minimax"), ("kimi_k25", "kimi"), ("glm4_moe", "glm")],
)  # fmt: skip
def test_turns(mode: Mode, family: str, form: str) -> None:
    """What was said goes back without its thinking; all that is the same is not read again."""
    pair = family_pair(family, form)
    target, session = pair.target, Session(pair, mode=mode)
    messages: list[dict[str, Any]] = []
    closed = 0
    for number in range(3):
        messages.append({"role": "user", "content": f"a question longer than a window, {number}"})
        answer = tiny.joined(list(session.stream(messages, max_tokens=9)))
        ids = pair.chat_tokens(messages)
        assert answer == tiny.plain(target, ids, 9, target.eos_ids, margin=0)
        assert session.stats.cached_tokens >= closed
        closed = len(pair.encode(pair.template.write(messages, add_generation_prompt=False)))
        messages.append({"role": "assistant", "content": "said"})


def test_a_switch_reaches_the_prompt() -> None:
    """Also by `generate`; the tokens that are counted beforehand are the same."""
    pair = family_pair("gpt_oss", "gpt_oss")
    seen: set[tuple[int, ...]] = set()
    for effort in (None, "low", "high"):
        session = Session(pair)
        ids = session.tokens("why?", reasoning_effort=effort)
        list(session.stream("why?", max_tokens=1, reasoning_effort=effort))
        assert session.sequence.tokens == ids
        assert (effort or "medium") in pair.tokenizer.decode(ids)
        seen.add(tuple(ids))
    assert len(seen) == 3
    thinker = family_pair("kimi_k25", "kimi")
    told = [Session(thinker).tokens("why?", think=think) for think in (None, True, False)]
    assert told[0] == told[1] != told[2]


def test_tools_reach_the_prompt() -> None:
    """Schemas, past thinking, and messages of and to a tool."""
    pair = family_pair("gpt_oss", "gpt_oss")
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "thinking": "well", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    session = Session(pair)
    list(session.stream(messages, max_tokens=1, tools=[TOOL]))
    text = pair.tokenizer.decode(session.sequence.tokens)
    for part in (
        'developer<|message|>{"name": "add"',
        "analysis<|message|>well<|end|>",
        'to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        'commentary<|message|>"2"',
    ):
        assert part in text
    assert session.tokens(messages, tools=[]) == session.tokens(messages)


REFUSED: list[Callable[[Session], Any]] = [
    lambda s: s.stream("why?", think=True),
    lambda s: s.stream("why?", think=False),
    lambda s: s.stream("why?", reasoning_effort="hihg"),
    lambda s: s.stream("why?", raw=True, reasoning_effort="low"),
    lambda s: s.stream([1, 2], think=True),
    lambda s: s.stream("why?", raw=True, tools=[TOOL]),
]


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_not_known_is_refused(wrong: Callable[[Session], Any]) -> None:
    """Before anything is read: nothing that was asked for is left out in silence."""
    session = Session(family_pair("gpt_oss", "gpt_oss"))
    with pytest.raises(UsageError) as caught:
        wrong(session)
    assert caught.value.hint
    assert session.sequence.tokens == []
