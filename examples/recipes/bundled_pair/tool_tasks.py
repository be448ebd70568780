"""Tasks for tools that take one call, and what the tools give back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from arithmetic import NAMES
from lists import WORDS
from tool_schemas import Action, Lookup, Tool
from wording import invented_name, invented_word

ENDINGS = ".txt .txt .txt .md .csv .json .py .log".split()
SAID = (
    "Buy {a} and {b}.",
    "The {a} is in the {b}.",
    "Call {name} at {hour}.",
    "{name} has {n} {a}s.",
    "The {a} costs {n} coins.",
    "Meeting with {name} at {hour}.",
    "The key is under the {a}.",
    "{a}, {b}",
    "Do not forget the {a}.",
    "{n}",
    "{a} = {n}",
    "The code is {n}.",
    "Dear {name}, the {a} is ready.",
    "{name} likes {a} and {b}.",
)


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


def a_file(rng: Random) -> str:
    """A file's path."""
    name = f"{a_word(rng)}{rng.choice(ENDINGS)}"
    return f"{a_folder(rng).rstrip('/')}/{name}" if rng.random() < 0.25 else name


def a_text(rng: Random) -> str:
    """The content of a file: one to three short lines."""
    lines = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        said = rng.choice(SAID)
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
    orders = (f"read {path}", f"read the file {path}", f"open {path}", f"show me {path}")
    questions = (
        f"What does {path} say?",
        f"What is in {path}?",
        f"What is in the file {path}?",
        f"Can you read {path}?",
        f"Please read {path} and tell me what it says.",
        f"Read the file {path} and tell me what it says.",
        f"Tell me what is in {path}.",
        f"Show the content of {path}.",
    )
    step = Step(tool, {tool.arguments[0]: path}, text)
    return Task(rng.choice(orders), questions, (step,), f"The file {path} says: {text}")


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
    return list(dict.fromkeys(f"{a_word(rng)}{rng.choice(ENDINGS)}" for _ in range(count)))


def list_task(rng: Random, tool: Tool) -> Task:
    """List a folder and say what is in it."""
    folder, names = a_folder(rng), some_files(rng, rng.randint(1, 5))
    orders = (
        f"list {folder}",
        f"list the folder {folder}",
        f"list the files in {folder}",
        f"show the files in {folder}",
    )
    questions = (
        f"What is in the folder {folder}?",
        f"Which files are in {folder}?",
        f"What files does {folder} have?",
        f"Can you list {folder}?",
        f"Show me the folder {folder}.",
    )
    step = list_step(rng, tool, folder, names)
    report = f"The folder {folder} has: {', '.join(names)}."
    return Task(rng.choice(orders), questions, (step,), report)


def sum_step(rng: Random, tool: Tool, a: int, b: int) -> Step:
    """The call that adds two numbers."""
    arguments: dict[str, Any] = {tool.arguments[0]: [a, b]}
    if len(tool.arguments) > 1:
        arguments = dict(zip(tool.arguments, (a, b), strict=True))
    return Step(tool, arguments, boxed(rng, "sum", a + b))


def add_task(rng: Random, tool: Tool) -> Task:
    """Add two numbers of any size."""
    a, b = a_number(rng), a_number(rng)
    orders = (f"add {a} and {b}", f"add {a} to {b}", f"compute {a} + {b}", f"sum {a} and {b}")
    questions = (
        f"What is {a} plus {b}?",
        f"What is {a} + {b}?",
        f"How much is {a} plus {b}?",
        f"What is the sum of {a} and {b}?",
        f"Use {tool.name} to add {a} and {b}.",
    )
    step = sum_step(rng, tool, a, b)
    return Task(rng.choice(orders), questions, (step,), f"The sum is {a + b}.")


def time_task(rng: Random, tool: Tool) -> Task:
    """Tell the time."""
    hour = an_hour(rng)
    orders = ("get the time", "tell me the time", "check the time", "say what time it is")
    questions = (
        "What time is it?",
        "What's the time?",
        "Can you tell me the time?",
        "What is the time now?",
        "Do you know what time it is?",
    )
    return Task(
        rng.choice(orders), questions, (Step(tool, {}, boxed(rng, "time", hour)),), f"It is {hour}."
    )


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
    orders = (
        f"get the {attribute} of {value}",
        f"find the {attribute} of {value}",
        f"look up the {attribute} of {value}",
        f"check the {attribute} of {value}",
        f"tell me the {attribute} of {value}",
    )
    questions = (
        f"What is the {attribute} of {value}?",
        f"What's the {attribute} of {value}?",
        f"I need the {attribute} of {value}.",
        f"Can you find the {attribute} of {value}?",
        f"What {attribute} does {value} have?",
        f"Use {tool.name} for {value}.",
        f"Call {tool.name} with {value}.",
    )
    steps = (lookup_step(rng, lookup, value, found),)
    return Task(rng.choice(orders), questions, steps, f"The {attribute} of {value} is {found}.")


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
    with_them = " and ".join(f"{key} {value}" for key, value in typed.items())
    equal = ", ".join(f"{key} = {value}" for key, value in typed.items())
    colon = ", ".join(f"{key}: {value}" for key, value in typed.items())
    what = f"{action.verb} the {action.noun}"
    orders = (
        f"{what} with {with_them}",
        f"{what} ({equal})",
        f"{action.verb} a {action.noun} with {with_them}",
    )
    questions = (
        f"Can you {what} with {with_them}?",
        f"Use {tool.name} with {with_them}.",
        f"Call {tool.name} with {equal}.",
        f"I want to {action.verb} a {action.noun}: {colon}",
        f"Use the tool {tool.name} ({equal}).",
    )
    result = action_result(rng, action)
    steps = (Step(tool, arguments, result),)
    return Task(rng.choice(orders), questions, steps, f"Done. The tool says: {result}")
