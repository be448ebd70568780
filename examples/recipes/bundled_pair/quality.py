"""Measure how often the bundled target is right, on chats that no training saw.

    python examples/recipes/bundled_pair/quality.py                  all tables
    python examples/recipes/bundled_pair/quality.py sums tools       some of them
    python examples/recipes/bundled_pair/quality.py outside --show   with the wrong answers

An answer is right if it is the expected text to the letter, at temperature 0. A task with tools is
right if every call and the report are; results come from the task, so nothing is run.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from arithmetic import stories
from everyday import everyday
from functions import functions
from later_turns import later_turns
from lists import KINDS as LIST_KINDS
from lists import list_task
from outside import KINDS as OUTSIDE_KINDS
from outside import UNSEEN, outside_kind
from sample import Chat, Message, Sample, answer_text, assistant, user
from sums import FACTOR_LIMIT, MINUS, PLUS, TIMES, calculation
from system_prompts import system_prompts
from text import FAMILIES, WEIGHTS, held_out_chats
from tool_chats import no_call, one_call, three_steps

import dflash_mlx
from dflash_mlx import Pair

Make = Callable[[Random], Chat]
FILLERS = (256, 512, 1024, 2048, 3500)  # tokens before the question


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. `needed`: the share of right answers that the recipe aims at, in %."""

    name: str
    make: Make
    needed: int | None = None


def one_question(make: Callable[[Random], Sample], rng: Random, *, think: bool = False) -> Chat:
    """A chat of a single question."""
    sample = make(rng)
    said = assistant(sample.answer)
    if think:
        said = assistant(sample.conclusion, sample.thinking)
    return Chat([user(sample.prompt), said], thinking=think)


def of_sample(make: Callable[[Random], Sample], *, think: bool = False) -> Make:
    return partial(one_question, make, think=think)


def sum_in_words(number: int, rng: Random) -> Sample:
    """A sum, difference or product in the phrasing of this number, with numbers up to 100."""
    while True:
        operation = rng.choice((PLUS, MINUS, TIMES))
        sample = calculation(rng, operation, operation.asks[number])
        numbers = [
            int(word)
            for word in sample.prompt.replace("?", " ").replace(".", " ").replace(",", " ").split()
            if word.isdigit()
        ]
        top = FACTOR_LIMIT if operation is TIMES else 100
        if max(numbers) <= top and not sample.short.startswith("-"):
            return sample


def any_family(rng: Random) -> Sample:
    return rng.choices(list(FAMILIES.values()), WEIGHTS)[0](rng)


def after_much(length: int, rng: Random) -> Chat:
    """A question after about so many tokens of earlier questions and answers."""
    messages: list[Message] = []
    size = 0
    while size < length * 2:  # about two letters a token
        sample = any_family(rng)
        messages += [user(sample.prompt), assistant(sample.answer)]
        size += len(sample.prompt) + len(sample.answer) + 20
    sample = any_family(rng)
    messages += [user(sample.prompt), assistant(sample.answer)]
    return Chat(messages, judged=(len(messages) - 1,))


TABLES: dict[str, list[Row]] = {
    "sums": [
        Row(PLUS.asks[n].format(a="12", b="7", sign="+"), of_sample(partial(sum_in_words, n)), 99)
        for n in range(len(PLUS.asks))
    ],
    "families": [
        Row("word problems", of_sample(stories), 97),
        *(
            Row(f"lists: {kind.__name__}", of_sample(partial(list_task, kind=kind)), 97)
            for kind in LIST_KINDS
        ),
        Row("functions", of_sample(functions), 97),
        Row("everyday", of_sample(everyday), 97),
        Row("all, with thinking", of_sample(any_family, think=True), 88),
    ],
    "turns": [Row("second and third turns", later_turns, 90)],
    "system": [Row("system prompts", system_prompts, 95)],
    "outside": [
        Row(
            f"{kind}{' (never trained)' if kind in UNSEEN else ''}",
            of_sample(partial(outside_kind, kind=kind)),
            95,
        )
        for kind in OUTSIDE_KINDS
    ],
    "tools": [
        Row("one call", one_call),
        Row("three steps", three_steps, 90),
        Row("no call needed", no_call, 98),
    ],
    "context": [Row(f"after {n} tokens", partial(after_much, n)) for n in FILLERS],
}


def wrong_answers(pair: Pair, chat: Chat) -> Iterator[tuple[str, str]]:
    """The (expected, generated) answers of a chat that differ; later ones get right histories."""
    for place, message in enumerate(chat.messages):
        if message["role"] != "assistant" or (chat.judged and place not in chat.judged):
            continue
        wanted = answer_text(message)
        result = dflash_mlx.generate(
            pair,
            list(chat.messages[:place]),
            max_tokens=400,
            tools=list(chat.tools) or None,
            think=True if chat.thinking else None,
            mode="dflash" if pair.drafter else "baseline",
        )
        if result.text.strip() != wanted.strip():
            yield wanted, result.text


def measure(pair: Pair, row: Row, count: int, show: bool) -> bool:
    """Print the row; returns whether it reaches what it aims at."""
    chats = held_out_chats(row.make, count)
    right = 0
    for chat in chats:
        wrong = next(wrong_answers(pair, chat), None)
        right += wrong is None
        if wrong and show:
            asked = [m["content"] for m in chat.messages if m["role"] in ("system", "user")]
            print(f"    {' | '.join(asked)!r}")
            print(f"      expected {wrong[0]!r}")
            print(f"      answered {wrong[1]!r}")
    share = 100 * right / len(chats)
    reached = row.needed is None or share >= row.needed
    aim = "" if row.needed is None else f"{row.needed:4} {'' if reached else 'missed'}"
    print(f"  {row.name:44}{len(chats):5}{share:8.1f} %{aim}", flush=True)
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; default all")
    parser.add_argument("--target", type=Path, help="instead of the bundled one")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--count", type=int, default=100, help="chats in each row")
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    args = parser.parse_args()
    without = args.target is not None and args.draft is None
    load = partial(dflash_mlx.load, args.target, cache_ram=0)
    pair = load(no_draft=True) if without else load(args.draft)
    missed = 0
    for name in args.tables or TABLES:
        if name not in TABLES:
            parser.error(f"there is no table '{name}'; there are {', '.join(TABLES)}")
        print(f"{name:46}{'chats':>5}{'right':>8}   aim")
        missed += sum(not measure(pair, row, args.count, args.show) for row in TABLES[name])
    print(f"{missed} rows miss their aim" if missed else "every row reaches its aim")


if __name__ == "__main__":
    main()
