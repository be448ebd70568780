"""Prompts and chats from a JSONL file, as token ids of the target.

Knows the file's format and the target's chat template; does not know the answers.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.chat.template import TemplateOptions
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.jsonl import read_lines, value_of
from dflash_mlx.target.target import Target

FORMAT_HINT = (
    'each line is a JSON string, {"prompt": "..."} or {"messages": [...]}, '
    'optionally with "think": true or false'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat that ends before the assistant's answer; `think` None leaves it to the template.

    `said` is the answer that the file gives, empty if it gives none. It only saves time: the target
    need not write again what it would say anyway.
    """

    messages: tuple[dict[str, Any], ...]
    think: bool | None
    line: int
    said: str = ""

    @property
    def digest(self) -> bytes:
        """A hash of what is asked, the same in every run."""
        text = json.dumps([self.messages, self.think], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).digest()


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a JSONL file; DFlashError names the first line that is none."""
    lines = read_lines(path, FORMAT_HINT)
    prompts = [parse_line(line, n, path) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise DFlashError(f"there are no prompts in '{path}'.", hint=FORMAT_HINT)
    return prompts


def parse_line(line: str, number: int, path: Path) -> Prompt:
    """One line of the file; an assistant message at its end is no part of the prompt."""
    fault = DFlashError(f"line {number} of '{path}' is not a prompt.", hint=FORMAT_HINT)
    try:
        read = value_of(line)
    except ValueError:
        raise fault from None
    value: Any = {"prompt": read} if isinstance(read, str) else read
    if not isinstance(value, dict) or not isinstance(value.get("think"), bool | None):
        raise fault
    messages = value.get("messages")
    if messages is None:
        messages = [{"role": "user", "content": value.get("prompt")}]
    if not isinstance(messages, list) or not all(map(is_message, messages)):
        raise fault
    said = ""
    if messages and messages[-1]["role"] == "assistant":
        said, messages = messages[-1]["content"], messages[:-1]
    if not messages:
        raise fault
    return Prompt(tuple(messages), value.get("think"), number, said)


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


@dataclass(frozen=True, slots=True)
class Question:
    """Token ids of a prompt, the opening of the answer included, and of the answer in the file."""

    tokens: list[int]
    said: list[int]


def tokenize(target: Target, prompts: list[Prompt]) -> list[Question]:
    """Prompts and the file's answers as token ids.

    Raises DFlashError for a prompt that the target's chat template cannot write, and for one that
    leaves no room for an answer in the target's context.
    """
    encoded = []
    for prompt in prompts:
        try:
            text = target.template.write(list(prompt.messages), TemplateOptions(think=prompt.think))
        except DFlashError as error:
            raise DFlashError(f"line {prompt.line}: {error.message}", hint=error.hint) from error
        tokens = target.encode(text)
        if len(tokens) >= target.context_length:
            raise DFlashError(
                f"the prompt in line {prompt.line} has {len(tokens)} tokens, the target's context"
                f" holds {target.context_length}.",
                hint="shorten the prompt or leave the line out",
            )
        said: list[int] = []
        if prompt.said:
            end = target.tokenizer.eos_token_id
            said = [*target.encode(without_overlap(text, prompt.said)), end]
        encoded.append(Question(tokens, said))
    return encoded


def without_overlap(opening: str, said: str) -> str:
    """The answer without what the template already wrote of it, such as a <think> tag."""
    overlaps = (n for n in range(len(said), 0, -1) if opening.endswith(said[:n]))
    return said[next(overlaps, 0) :]
