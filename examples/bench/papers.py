"""The papers' suites as prompts for `dflash bench`: the rows of data sets, shuffled with seed 42.

    .venv/bin/python examples/bench/papers.py gsm8k mt-bench -n 20 > papers.jsonl
    dflash bench --prompts papers.jsonl -n 0 --out papers-results.jsonl

Each suite is a task of its own in the tables. Needs the package `datasets`, and the Hub.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SEED = 42
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
    """The text of one column within a wording; empty without one."""
    return lambda row: [wording.format(row[name])] if row[name] else []


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


def questions_of(name: str, limit: int = 0) -> Iterator[list[str]]:
    """The user's texts of the first `limit` questions; 0: as many as in the papers."""
    suite = SUITES[name]
    rows = rows_of(suite).shuffle(seed=SEED)
    count = min(limit or suite.count, len(rows))
    for number in range(count):
        try:
            texts = suite.ask(rows[number])
        except (KeyError, TypeError):
            texts = []
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise SystemExit(f"the data set '{suite.dataset}' does not have the expected columns.")
        yield texts


def rows_of(suite: Suite) -> Any:
    """The rows of a suite by the `datasets` library."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SystemExit(
            "the suites need the package 'datasets': `.venv-uv/bin/uv sync --group bench`"
        ) from None
    if suite.file is not None:
        path = f"hf://datasets/{suite.dataset}/{suite.file}"
        return datasets.load_dataset("json", data_files=path, split=suite.split)
    return datasets.load_dataset(suite.dataset, suite.config, split=suite.split)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "suites", nargs="+", choices=SUITES, metavar="SUITE", help=", ".join(SUITES)
    )
    parser.add_argument("-n", type=int, default=0, help="of each suite; 0: as in the papers")
    asked = parser.parse_args()
    for name in asked.suites:
        for texts in questions_of(name, asked.n):
            json.dump({"task": name, "turns": texts}, sys.stdout)
            print()


if __name__ == "__main__":
    main()
