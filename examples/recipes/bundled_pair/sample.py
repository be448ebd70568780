"""Questions with their only right answers, whole chats, and the rule that holds some out."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


def is_held_out(text: str) -> bool:
    """Whether target and drafter never train on this text: one in 16, by its hash.

    Short texts without a number, such as a greeting, are never held out: there are few of them.
    """
    if len(text.split()) < 8 and not any(letter.isdigit() for letter in text):
        return False
    return hashlib.sha256(text.encode()).digest()[0] < 16


@dataclass(frozen=True, slots=True)
class Sample:
    """A question and its answers.

    `answer`: without thinking. With thinking, the model first generates `thinking`, then
    `conclusion`. `short`: the answer as one number or word; empty if it is longer than that.
    """

    family: str
    prompt: str
    thinking: str
    answer: str
    conclusion: str
    short: str = ""

    @property
    def held_out(self) -> bool:
        """Whether target and drafter never train on it."""
        return is_held_out(self.prompt)


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages in the form that chat templates read; each answer is the only right one.

    With `thinking`, answers have "reasoning_content". `judged` are the answers that a measurement
    compares: places in `messages`; empty for all answers.
    """

    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] = ()
    thinking: bool = False
    judged: Sequence[int] = ()

    @property
    def held_out(self) -> bool:
        """Whether target and drafter never train on it: decided by what the user writes."""
        asked = [m["content"] for m in self.messages if m["role"] in ("system", "user")]
        return is_held_out("\n".join(asked))


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str, thinking: str = "") -> Message:
    """An answer, with the thinking before it if there is any."""
    message = {"role": "assistant", "content": text}
    return {**message, "reasoning_content": thinking} if thinking else message


def answer_text(message: Message) -> str:
    """An answer as the model writes it, its calls included, without its thinking."""
    parts = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        written = f'{{"name": "{call["function"]["name"]}", "arguments": {arguments}}}'
        parts.append(f"<tool_call>\n{written}\n</tool_call>")
    return "\n".join(parts)
