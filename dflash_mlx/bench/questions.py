"""Questions of a benchmark: chats of one or more turns, from a JSONL file or the package."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.files.checkpoint import read_lines, value_of
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.installation import install_command

BUNDLED = "bundled"
FORMAT_HINT = (
    'each line is a JSON string, {"prompt": "..."}, {"messages": [...]} or {"turns": ["...", ...]}'
    ', optionally with "task": "name"'
)


@dataclass(frozen=True, slots=True)
class Question:
    """A chat; each answer becomes part of the prompt of the next turn.

    `number` counts from 1 in the suite; `task` groups questions in tables; `turns` holds the
    messages before each answer.
    """

    suite: str
    number: int
    task: str
    turns: tuple[tuple[dict[str, Any], ...], ...]

    @property
    def digest(self) -> str:
        text = json.dumps(self.turns, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def from_user(texts: list[str]) -> tuple[tuple[dict[str, Any], ...], ...]:
    return tuple(({"role": "user", "content": text},) for text in texts)


def bundled_questions() -> list[Question]:
    """The held-out prompts of the bundled pair."""
    return read_questions(bundled("target").parent / "prompts.jsonl", suite=BUNDLED)


def read_questions(path: Path, suite: str | None = None) -> list[Question]:
    """All questions of a JSONL file. Raises DFlashError for the first invalid line.

    `suite` defaults to the name of the file. An assistant message at the end of a chat is dropped.
    """
    suite = suite or path.stem
    questions: list[Question] = []
    for number, line in enumerate(read_lines(path, FORMAT_HINT), 1):
        if not line.strip():
            continue
        turns, task = parse(line)
        if not turns:
            raise DFlashError(f"line {number} of '{path}' is not a prompt.", hint=FORMAT_HINT)
        questions.append(Question(suite, len(questions) + 1, task or suite, turns))
    if not questions:
        raise DFlashError(f"there are no prompts in '{path}'.", hint=FORMAT_HINT)
    return questions


def parse(line: str) -> tuple[tuple[tuple[dict[str, Any], ...], ...], str]:
    """The turns and the task of one line; no turns if the line is invalid."""
    try:
        value = value_of(line)
    except ValueError:
        return (), ""
    value = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(value, dict) or not isinstance(task := value.get("task", ""), str):
        return (), ""
    contents = [value[name] for name in ("prompt", "messages", "turns") if name in value]
    if len(contents) != 1:
        return (), ""
    if "messages" in value:
        messages = contents[0]
        if not isinstance(messages, list) or not all(map(is_message, messages)):
            return (), ""
        while messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        return ((tuple(messages),) if messages else ()), task
    texts = contents[0] if "turns" in value else contents
    if not isinstance(texts, list) or not all(map(is_text, texts)):
        return (), ""
    return from_user(texts), task


def is_text(value: Any) -> bool:
    """Whether a JSON value is a string with other characters than spaces."""
    return isinstance(value, str) and bool(value.strip())


def is_message(value: Any) -> bool:
    """Whether a JSON value is a chat message with text that is not empty."""
    return isinstance(value, dict) and is_text(value.get("role")) and is_text(value.get("content"))


# The data sets of the papers' tables

SEED = 42
OFFLINE = (
    "connect to the Hub once and run it again, or give prompts of your own with --prompts FILE"
)
REASONING = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
PYTHON = (
    "Complete this Python function so that it does what its docstring says.\n```python\n{}\n```"
)


@dataclass(frozen=True, slots=True)
class Suite:
    """A data set, the number of questions, and the user's texts of a row (`ask`)."""

    dataset: str
    split: str
    count: int
    ask: Callable[[dict[str, Any]], list[str]]
    config: str | None = None
    file: str | None = None  # a file, for a data set whose loading script is not supported


def column(name: str, wording: str = "{}") -> Callable[[dict[str, Any]], list[str]]:
    """The text of one column within a wording; empty if the column has no text."""
    return lambda row: [wording.format(row[name])] if is_text(row[name]) else []


def instruction(row: dict[str, Any]) -> list[str]:
    """Alpaca: the instruction, and the input if there is one."""
    return [f"{row['instruction']}\n\n{row['input']}" if row["input"] else row["instruction"]]


def programming(row: dict[str, Any]) -> list[str]:
    """LiveCodeBench: the problem, and the starter code if there is some."""
    task = "Solve it in Python. The program reads standard input and prints the answer."
    if row["starter_code"]:
        task = (
            f"Solve it in Python, beginning with this code.\n```python\n{row['starter_code']}\n```"
        )
    return [f"{row['question_content']}\n\n{task}"]


SUITES = {
    "gsm8k": Suite("openai/gsm8k", "test", 128, column("question", REASONING), config="main"),
    "math500": Suite("HuggingFaceH4/MATH-500", "test", 128, column("problem", REASONING)),
    "aime24": Suite("HuggingFaceH4/aime_2024", "train", 30, column("problem", REASONING)),
    "aime25": Suite("MathArena/aime_2025", "train", 30, column("problem", REASONING)),
    "humaneval": Suite("openai/openai_humaneval", "test", 164, column("prompt", PYTHON)),
    "mbpp": Suite(
        "google-research-datasets/mbpp", "test", 128, column("prompt"), config="sanitized"
    ),
    "livecodebench": Suite(
        "livecodebench/code_generation_lite", "train", 128, programming, file="test6.jsonl"
    ),
    "mt-bench": Suite(
        "HuggingFaceH4/mt_bench_prompts", "train", 80, lambda row: list(row["prompt"])
    ),
    "alpaca": Suite("tatsu-lab/alpaca", "train", 128, instruction),
}


def suite_names() -> list[str]:
    """The names of all suites; the first one needs no network."""
    return [BUNDLED, *SUITES]


def questions_of(name: str, limit: int = 0) -> list[Question]:
    """The first `limit` questions of a suite (0: as many as in the papers), shuffled with seed 42.

    Raises UsageError for an unknown suite, DFlashError if it cannot be read.
    """
    if name == BUNDLED:
        questions = bundled_questions()
        return questions[: limit or len(questions)]
    if name not in SUITES:
        raise UsageError(f"there is no suite '{name}'.", hint=f"use {', '.join(suite_names())}")
    suite = SUITES[name]
    rows = rows_of(name, suite).shuffle(seed=SEED)
    count = min(limit or suite.count, len(rows))
    questions = []
    for number in range(count):
        try:
            texts = suite.ask(rows[number])
        except (KeyError, TypeError) as error:
            raise unexpected(name, suite) from error
        if not texts or not all(map(is_text, texts)):
            raise unexpected(name, suite)
        questions.append(Question(name, number + 1, name, from_user(texts)))
    if not questions:
        raise unexpected(name, suite)
    return questions


def unexpected(name: str, suite: Suite) -> DFlashError:
    return DFlashError(
        f"the data set '{suite.dataset}' of the suite '{name}' does not have the expected columns.",
        hint="give prompts of your own with --prompts FILE",
    )


def rows_of(name: str, suite: Suite) -> Any:
    """The rows of a suite by the `datasets` library. Raises DFlashError."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DFlashError(
            f"the suite '{name}' needs the package 'datasets'.",
            hint=f"{install_command('datasets')}, or give prompts of your own with --prompts FILE",
        ) from error
    try:
        if suite.file is not None:
            path = f"hf://datasets/{suite.dataset}/{suite.file}"
            return datasets.load_dataset("json", data_files=path, split=suite.split)
        return datasets.load_dataset(suite.dataset, suite.config, split=suite.split)
    except Exception as error:  # the Hub, the disk, pyarrow and scripts raise many types
        raise DFlashError(
            f"the data set '{suite.dataset}' of the suite '{name}' cannot be read "
            f"({first_line(error)}).",
            hint=OFFLINE,
        ) from error
