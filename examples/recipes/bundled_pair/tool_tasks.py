"""Tasks for tools that take one call, and what the tools give back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from arithmetic import NAMES
from lists import WORDS
from read_words import read_words
from tool_schemas import Action, Lookup, Tool
from wording import invented_name, invented_word

PHRASES = read_words("tool_tasks")


@dataclass(frozen=True, slots=True)
class Step:
    """A call with its result, and what the model thinks before it."""

    tool: Tool
    arguments: dict[str, Any]
    result: str


@dataclass(frozen=True, slots=True)
class Task:
    """Something to do with tools.

    `order`: as a command, without a capital and a final mark. `questions`: other ways to ask for
    it. `report`: the sentence when it is done.
    """

    order: str
    questions: tuple[str, ...]
    steps: tuple[Step, ...]
    report: str


def worded(rng: Random, kind: str, steps: tuple[Step, ...], report: str, **words: Any) -> Task:
    """A task of a kind, in one of its orders and all its questions, with these words in them."""
    order = rng.choice(PHRASES[kind]["orders"]).format(**words)
    questions = tuple(each.format(**words) for each in PHRASES[kind].get("questions", ()))
    return Task(order, questions, steps, report)


# What tools give back


def a_word(rng: Random) -> str:
    return invented_word(rng, 1, 3) if rng.random() < 0.3 else rng.choice(WORDS)


def a_person(rng: Random) -> str:
    return invented_name(rng) if rng.random() < 0.3 else rng.choice(NAMES)


def an_hour(rng: Random) -> str:
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"


def a_folder(rng: Random) -> str:
    """A folder's path."""
    name = a_word(rng) if rng.random() < 0.6 else rng.choice("data docs src tmp notes".split())
    return rng.choice(("{}", "{}", "{}", "/{}", "./{}", "home/{}", "{}/")).format(name)


def file_name(rng: Random) -> str:
    return a_word(rng) + rng.choice(PHRASES["endings"])


def a_file(rng: Random) -> str:
    """A file's path."""
    name = file_name(rng)
    return f"{a_folder(rng).rstrip('/')}/{name}" if rng.random() < 0.25 else name


def a_text(rng: Random) -> str:
    """The content of a file: one to three short lines."""
    lines = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        said = rng.choice(PHRASES["said"])
        lines.append(
            said.format(
                a=a_word(rng),
                b=a_word(rng),
                n=a_number(rng),
                name=a_person(rng),
                hour=an_hour(rng),
            )
        )
    return "\n".join(lines)


def a_number(rng: Random) -> int:
    """A number of one to five digits."""
    return rng.randint(0, 10 ** rng.choice((1, 2, 2, 2, 3, 4, 5)) - 1)


def boxed(rng: Random, key: str, value: Any) -> str:
    """A result as programs give it: the value, or JSON around it."""
    if rng.random() < 0.75:
        return str(value)
    return json.dumps({rng.choice((key, "result", "value")): value})


# Tasks of one call


def read_task(rng: Random, tool: Tool) -> Task:
    """Read a file and say what it says."""
    path, text = a_file(rng), a_text(rng)
    step = Step(tool, {tool.arguments[0]: path}, text)
    return worded(rng, "read", (step,), f"The file {path} says: {text}", path=path)


def list_step(rng: Random, tool: Tool, folder: str, names: Sequence[str]) -> Step:
    """The call that lists a folder."""
    style = rng.randrange(4)
    result = (
        "\n".join(names),
        ", ".join(names),
        json.dumps(list(names)),
        "\n".join(f"[FILE] {name}" for name in names),
    )[style]
    return Step(tool, {tool.arguments[0]: folder}, result)


def some_files(rng: Random, count: int) -> list[str]:
    """Names of files, without folders."""
    return list(dict.fromkeys(file_name(rng) for _ in range(count)))


def list_task(rng: Random, tool: Tool) -> Task:
    """List a folder and say what is in it."""
    folder, names = a_folder(rng), some_files(rng, rng.randint(1, 5))
    step = list_step(rng, tool, folder, names)
    report = f"The folder {folder} has: {', '.join(names)}."
    return worded(rng, "list", (step,), report, folder=folder)


def sum_step(rng: Random, tool: Tool, a: int, b: int) -> Step:
    """The call that adds two numbers."""
    arguments: dict[str, Any] = {tool.arguments[0]: [a, b]}
    if len(tool.arguments) > 1:
        arguments = dict(zip(tool.arguments, (a, b), strict=True))
    return Step(tool, arguments, boxed(rng, "sum", a + b))


def add_task(rng: Random, tool: Tool) -> Task:
    """Add two numbers of any size."""
    a, b = a_number(rng), a_number(rng)
    step = sum_step(rng, tool, a, b)
    return worded(rng, "add", (step,), f"The sum is {a + b}.", a=a, b=b, tool=tool.name)


def time_task(rng: Random, tool: Tool) -> Task:
    """Tell the time."""
    hour = an_hour(rng)
    task = worded(rng, "time", (), f"It is {hour}.")
    return replace(task, steps=(Step(tool, {}, boxed(rng, "time", hour)),))


def looked_up(rng: Random) -> str | int:
    """What a lookup gives: a number, a word, a name, an hour, or some words."""
    kind = rng.randrange(6)
    if kind < 2:
        return a_number(rng)
    if kind == 2:
        return an_hour(rng)
    if kind == 3:
        return a_person(rng)
    if kind == 4:
        return f"{a_word(rng)} and {a_word(rng)}"
    return a_word(rng)


def a_value(rng: Random) -> str:
    """What a lookup is about: a word, a name, or a word with something around it."""
    value = rng.choice((a_word, a_word, a_person))(rng)
    if rng.random() < 0.15:
        return rng.choice(("the {}", "{} 2", "my {}", "a-{}", "{}7", "old {}")).format(value)
    return value


def lookup_step(rng: Random, lookup: Lookup, value: str, found: str | int) -> Step:
    """The call that looks something up."""
    result = boxed(rng, lookup.attribute, found)
    return Step(lookup.tool, {lookup.tool.arguments[0]: value}, result)


def lookup_task(rng: Random, lookup: Lookup) -> Task:
    """Look something up and say it."""
    tool, attribute, value, found = lookup.tool, lookup.attribute, a_value(rng), looked_up(rng)
    steps = (lookup_step(rng, lookup, value, found),)
    report = f"The {attribute} of {value} is {found}."
    words = {"attribute": attribute, "value": value, "tool": tool.name}
    return worded(rng, "lookup", steps, report, **words)


def argument(rng: Random, kind: str) -> Any:
    """A value of a JSON type."""
    if kind == "integer":
        return a_number(rng)
    if kind == "boolean":
        return rng.random() < 0.5
    return rng.choice((a_word, a_word, a_person, a_file))(rng)


def action_result(rng: Random, action: Action) -> str:
    """What a tool says when it has done something."""
    number = a_number(rng)
    said = ("ok", "done", "OK", "true", '{"status": "ok"}', f"id {number}", a_word(rng))
    return rng.choice((*said, f"{action.noun} {number}"))


def action_task(rng: Random, action: Action) -> Task:
    """Do something whose arguments are all named."""
    tool = action.tool
    arguments = {
        key: argument(rng, kind) for key, kind in zip(tool.arguments, action.kinds, strict=True)
    }
    typed = {key: json.dumps(value).strip('"') for key, value in arguments.items()}
    words = {
        "verb": action.verb,
        "noun": action.noun,
        "tool": tool.name,
        "what": f"{action.verb} the {action.noun}",
        "with_them": " and ".join(f"{key} {value}" for key, value in typed.items()),
        "equal": ", ".join(f"{key} = {value}" for key, value in typed.items()),
        "colon": ", ".join(f"{key}: {value}" for key, value in typed.items()),
    }
    result = action_result(rng, action)
    steps = (Step(tool, arguments, result),)
    return worded(rng, "action", steps, f"Done. The tool says: {result}", **words)
