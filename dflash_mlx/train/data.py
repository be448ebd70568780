"""Reading and tokenizing of the training prompts, a JSONL file of prompts and chats."""

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
    """A chat that ends before the assistant's answer.

    `think` None is the template's default. `given` is the answer in the file, empty if there is
    none. It only saves time: the target verifies it, and generates from the first difference.
    """

    messages: tuple[dict[str, Any], ...]
    think: bool | None
    line: int
    given: str = ""

    @property
    def digest(self) -> bytes:
        """A stable hash of the messages and `think`."""
        text = json.dumps([self.messages, self.think], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).digest()


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a JSONL file. Raises DFlashError for the first invalid line."""
    lines = read_lines(path, FORMAT_HINT)
    prompts = [parse_line(line, n, path) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise DFlashError(f"there are no prompts in '{path}'.", hint=FORMAT_HINT)
    return prompts


def parse_line(line: str, number: int, path: Path) -> Prompt:
    """The prompt of one line. A last message of the assistant is the given answer."""
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
    given = ""
    if messages and messages[-1]["role"] == "assistant":
        given, messages = messages[-1]["content"], messages[:-1]
    if not messages:
        raise fault
    return Prompt(tuple(messages), value.get("think"), number, given)


def is_message(value: Any) -> bool:
    """Whether a JSON value is a chat message with non-empty text."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return isinstance(value.get("content"), str) and bool(value["content"].strip())


def split(prompts: list[Prompt], share: float) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts into training and held-out ones by their hash; equal prompts stay together."""
    limit = round(share * 2**32)
    held_out = [int.from_bytes(p.digest[:4], "big") < limit for p in prompts]
    train = [p for p, out in zip(prompts, held_out, strict=True) if not out]
    return train, [p for p, out in zip(prompts, held_out, strict=True) if out]


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Token ids of a prompt with the generation prompt, and of the given answer."""

    tokens: list[int]
    given: list[int]


def tokenize(target: Target, prompts: list[Prompt]) -> list[TokenizedPrompt]:
    """Token ids of the prompts and of their given answers.

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
        given: list[int] = []
        if prompt.given:
            end = target.tokenizer.eos_token_id
            given = [*target.encode(without_overlap(text, prompt.given)), end]
        encoded.append(TokenizedPrompt(tokens, given))
    return encoded


def without_overlap(opening: str, given: str) -> str:
    """The answer without its start that the template has written already, such as <think>."""
    overlaps = (n for n in range(len(given), 0, -1) if opening.endswith(given[:n]))
    return given[next(overlaps, 0) :]
