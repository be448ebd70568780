"""Questions of a benchmark: chats of one or more turns, from a JSONL file or the package."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.files.checkpoint import read_prompt_lines
from dflash_mlx.hub.resolve import bundled

BUNDLED = "bundled"
FORMAT_HINT = (
    'each line is a JSON string, {"prompt": "..."}, {"messages": [...]} or {"turns": ["...", ...]}'
    ', optionally with "task": "name"'
)
Turns = tuple[tuple[dict[str, Any], ...], ...]  # the messages before each answer


@dataclass(frozen=True, slots=True)
class Question:
    """A chat; each answer becomes part of the prompt of the next turn.

    `number` counts from 1 in the suite; `task` groups questions in tables.
    """

    suite: str
    number: int
    task: str
    turns: Turns

    @property
    def digest(self) -> str:
        text = json.dumps(self.turns, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def from_user(texts: Sequence[str]) -> Turns:
    return tuple(({"role": "user", "content": text},) for text in texts)


def bundled_questions() -> list[Question]:
    return read_questions(bundled("target").parent / "prompts.jsonl", suite=BUNDLED)


def read_questions(path: Path, suite: str | None = None) -> list[Question]:
    """All questions of a JSONL file. Raises DFlashError for the first invalid line.

    `suite` defaults to the name of the file. An assistant message at the end of a chat is dropped.
    """
    suite = suite or path.stem
    found = enumerate(read_prompt_lines(path, FORMAT_HINT, parse), 1)
    return [Question(suite, number, task or suite, turns) for number, (turns, task) in found]


def parse(value: dict[str, Any], _: int) -> tuple[Turns, str] | None:
    """The turns and the task of one line; None if the line is invalid."""
    if not isinstance(task := value.get("task", ""), str):
        return None
    match [(name, value[name]) for name in ("prompt", "messages", "turns") if name in value]:
        case [("messages", list() as messages)] if all(map(is_message, messages)):
            while messages and messages[-1]["role"] == "assistant":
                messages = messages[:-1]
            return ((tuple(messages),), task) if messages else None
        case [("turns", [_, *_] as texts)] if all(map(is_text, texts)):
            return from_user(texts), task
        case [("prompt", text)] if is_text(text):
            return from_user([text]), task
    return None


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_message(value: Any) -> bool:
    return isinstance(value, dict) and is_text(value.get("role")) and is_text(value.get("content"))
