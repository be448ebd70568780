"""Prompts and chats from a JSONL file, as token ids of the target.

Knows the file's format and the target's chat template; does not know the answers.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DFlashError
from ..target import Target

FORMAT_HINT = (
    'each line is a JSON string, {"prompt": "..."} or {"messages": [...]}, '
    'optionally with "think": true or false'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat that ends before the assistant's answer; `think` None leaves it to the template."""

    messages: tuple[dict[str, Any], ...]
    think: bool | None
    line: int

    @property
    def digest(self) -> bytes:
        """A hash of what is asked, the same in every run."""
        text = json.dumps([self.messages, self.think], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).digest()


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a JSONL file; DFlashError names the first line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DFlashError(f"'{path}' cannot be read ({reason}).", hint=FORMAT_HINT) from None
    prompts = [parse_line(line, n, path) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise DFlashError(f"there are no prompts in '{path}'.", hint=FORMAT_HINT)
    return prompts


def parse_line(line: str, number: int, path: Path) -> Prompt:
    """One line of the file; an assistant message at its end is dropped, the target answers anew."""
    fault = DFlashError(f"line {number} of '{path}' is not a prompt.", hint=FORMAT_HINT)
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        raise fault from None
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict) or not isinstance(value.get("think"), bool | None):
        raise fault
    messages = value.get("messages")
    if messages is None:
        messages = [{"role": "user", "content": value.get("prompt")}]
    if not isinstance(messages, list) or not all(map(is_message, messages)):
        raise fault
    if messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise fault
    return Prompt(tuple(messages), value.get("think"), number)


def is_message(value: Any) -> bool:
    """Whether a JSON value is a chat message with text that is not empty."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return isinstance(value.get("content"), str) and bool(value["content"].strip())


def split(prompts: list[Prompt], share: float) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to train on and to measure on; the hash decides, so equal prompts stay together."""
    limit = round(share * 2**32)
    held_out = [int.from_bytes(p.digest[:4], "big") < limit for p in prompts]
    train = [p for p, out in zip(prompts, held_out, strict=True) if not out]
    return train, [p for p, out in zip(prompts, held_out, strict=True) if out]


def tokenize(target: Target, prompts: list[Prompt]) -> list[list[int]]:
    """Token ids of each prompt, the opening of the answer included.

    Raises DFlashError for a prompt that leaves no room for an answer in the target's context.
    """
    encoded = []
    for prompt in prompts:
        tokens = target.chat_tokens(list(prompt.messages), prompt.think)
        if len(tokens) >= target.context_length:
            raise DFlashError(
                f"the prompt in line {prompt.line} has {len(tokens)} tokens, the target's context"
                f" holds {target.context_length}.",
                hint="shorten the prompt or leave the line out",
            )
        encoded.append(tokens)
    return encoded
