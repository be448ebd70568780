"""Pairs that call tools: a function chooses the target's answer to each chat."""

import json
from collections.abc import Callable
from typing import Any

import tiny
from scripted_pair import VOCAB, follow_script
from scripted_server import tool_tokenizer

from dflash_mlx.chat.template import DEFAULTS
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair


def calls(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def talking_pair(says: Callable[[list[dict[str, Any]]], str], **more: Any) -> Pair:
    """A pair that answers messages with the text `says(messages)`; its drafts are always right.

    The target's `prompts` records the messages and the tokens of each prompt.
    """
    tokenizer = more.pop("tokenizer", None) or tool_tokenizer()
    target = tiny.make_target("qwen3", vocab_size=VOCAB, num_hidden_layers=3)
    target = tiny.with_ends(target, tokenizer)
    script: list[int] = []
    prompts: list[tuple[Any, list[int]]] = []
    follow_script(target, script)

    class TalkingPair(Pair):
        def chat_tokens(self, messages: Any, options: GenerationOptions = DEFAULTS) -> list[int]:
            ids = super().chat_tokens(messages, options)
            said = tokenizer.encode(says(messages), add_special_tokens=False)
            script[:] = [*ids, *said, 256, *[0] * 32]
            prompts.append((messages, ids))
            return ids

    def draft_cache() -> tiny.ScriptedCache:
        cache = tiny.ScriptedCache((), False, VOCAB, strict=False)
        cache.text = script
        return cache

    target.prompts = prompts  # type: ignore[attr-defined]
    drafter = tiny.stand_in(draft_cache)
    return TalkingPair.of(target, drafter, tokenizer, "talker", "script")


def says(messages: list[dict[str, Any]]) -> str:
    """Answer the last question with a tool call, or report the result of the last call."""
    asked = next(m["content"] for m in reversed(messages) if m["role"] == "user")
    last = messages[-1]
    if last["role"] == "tool":
        return "It says: " + last["content"].splitlines()[0]
    word, _, rest = asked.partition(" ")
    if word == "weather":
        return f"I look.{calls('weather', json.dumps({'city': rest} if rest else {}))}"
    if word in ("sleep", "end"):
        return calls(word)
    return "Fine."
