"""Tasks for tools, of one call or of several that need each other's results."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from arithmetic import NAMES
from lists import WORDS
from tool_schemas import Tool, action_tool, lookup_tool
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
    orders = (f"add {a} and {b}", f"add {b} to {a}", f"compute {a} + {b}", f"sum {a} and {b}")
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


def lookup_tools(rng: Random) -> tuple[Tool, Callable[[Random], Task]]:
    """A new lookup tool, and what makes tasks for it."""
    lookup = lookup_tool(rng)
    tool, attribute = lookup.tool, lookup.attribute

    def make(rng: Random) -> Task:
        value = rng.choice((a_word, a_word, a_person))(rng)
        if rng.random() < 0.15:
            value = rng.choice(("the {}", "{} 2", "my {}", "a-{}", "{}7", "old {}")).format(value)
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
        found = looked_up(rng)
        step = Step(tool, {tool.arguments[0]: value}, boxed(rng, attribute, found))
        return Task(
            rng.choice(orders), questions, (step,), f"The {attribute} of {value} is {found}."
        )

    return tool, make


def action_tools(rng: Random) -> tuple[Tool, Callable[[Random], Task]]:
    """A new tool that does something, and what makes tasks for it."""
    action = action_tool(rng)
    tool = action.tool

    def value_of(rng: Random, kind: str) -> Any:
        if kind == "integer":
            return a_number(rng)
        if kind == "boolean":
            return rng.random() < 0.5
        return rng.choice((a_word, a_word, a_person, a_file))(rng)

    def make(rng: Random) -> Task:
        arguments = {
            key: value_of(rng, kind) for key, kind in zip(tool.arguments, action.kinds, strict=True)
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
        result = rng.choice(
            (
                "ok",
                "done",
                "OK",
                f"{action.noun} {a_number(rng)}",
                "true",
                '{"status": "ok"}',
                f"id {a_number(rng)}",
                a_word(rng),
            )
        )
        return Task(
            rng.choice(orders),
            questions,
            (Step(tool, arguments, result),),
            f"Done. The tool says: {result}",
        )

    return tool, make


# Tasks whose steps need each other


def two_files(rng: Random, read: Tool, add: Tool) -> Task:
    """Add the numbers of two files."""
    first, second = a_file(rng), a_file(rng)
    a, b = a_number(rng), a_number(rng)
    steps = (
        Step(read, {read.arguments[0]: first}, holding(rng, a)),
        Step(read, {read.arguments[0]: second}, holding(rng, b)),
        sum_step(rng, add, a, b),
    )
    order = rng.choice(
        (
            f"read {first} and {second} and add their numbers",
            f"add the number in {first} to the number in {second}",
            f"read the files {first} and {second} and add the numbers in them",
        )
    )
    questions = (
        f"What is the sum of the numbers in {first} and {second}?",
        f"How much are the numbers in {first} and {second} together?",
    )
    return Task(order, questions, steps, f"The sum is {a + b}.")


def holding(rng: Random, number: int) -> str:
    """The content of a file in which there is one number."""
    texts = ("{}", "{}", "{a} = {}", "The number is {}.", "{name} has {} {a}s.", "{a}: {}")
    return rng.choice(texts).format(number, a=a_word(rng), name=a_person(rng))


def one_file(rng: Random, read: Tool, add: Tool) -> Task:
    """Add the two numbers of a file, or a number to that in a file."""
    path, a, b = a_file(rng), a_number(rng), a_number(rng)
    if rng.random() < 0.5:
        text = rng.choice(("{} {}", "{}\n{}", "{}, {}", "{} and {}", "a = {}\nb = {}")).format(a, b)
        order = rng.choice(
            (
                f"read {path} and add the two numbers in it",
                f"add the numbers in {path}",
                f"read the file {path} and add its numbers",
            )
        )
        questions = (f"What is the sum of the numbers in {path}?",)
    else:
        text = holding(rng, a)
        order = rng.choice(
            (
                f"read {path} and add {b} to the number in it",
                f"add {b} to the number in {path}",
            )
        )
        questions = (f"How much is the number in {path} plus {b}?",)
    steps = (Step(read, {read.arguments[0]: path}, text), sum_step(rng, add, a, b))
    return Task(order, questions, steps, f"The sum is {a + b}.")


def folder_file(rng: Random, listing: Tool, read: Tool, add: Tool | None) -> Task:
    """List a folder, read the only file in it, and add to its number if there is a tool."""
    folder = a_folder(rng)
    name = some_files(rng, 1)[0]
    path = f"{folder.rstrip('/')}/{name}"
    first = list_step(rng, listing, folder, [name])
    if add is None:
        text = a_text(rng)
        order = rng.choice(
            (
                f"list {folder} and read the file in it",
                f"read the file in the folder {folder}",
            )
        )
        questions = (f"What does the file in {folder} say?",)
        report = f"The file {path} says: {text}"
        return Task(order, questions, (first, Step(read, {read.arguments[0]: path}, text)), report)
    a, b = a_number(rng), a_number(rng)
    order = rng.choice(
        (
            f"list {folder}, read the file in it and add {b} to its number",
            f"find the file in {folder}, read it and add {b} to the number in it",
        )
    )
    questions = (f"How much is the number in the only file of {folder} plus {b}?",)
    steps = (
        first,
        Step(read, {read.arguments[0]: path}, holding(rng, a)),
        sum_step(rng, add, a, b),
    )
    return Task(order, questions, steps, f"The sum is {a + b}.")


def add_chain(rng: Random, add: Tool) -> Task:
    """Add three or four numbers, one after the other."""
    numbers = [a_number(rng) for _ in range(rng.choice((3, 4, 4)))]
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(sum_step(rng, add, total, number))
        total += number
    listed = ", ".join(str(number) for number in numbers)
    later = ", then ".join(f"add {number}" for number in numbers[2:])
    order = rng.choice(
        (
            f"add {numbers[0]} and {numbers[1]}, then {later}",
            f"add these numbers: {listed}",
            f"add up {listed}",
        )
    )
    return Task(order, (f"What is the sum of {listed}?",), tuple(steps), f"The sum is {total}.")


def lookup_sum(rng: Random, make: Callable[[Random], Task], add: Tool) -> Task:
    """Look up two numbers and add them."""
    first, second = make(rng), make(rng)
    a, b = a_number(rng), a_number(rng)
    lookups = []
    for task, number in ((first, a), (second, b)):
        step = task.steps[0]
        lookups.append(Step(step.tool, step.arguments, str(number)))
    attribute = first.report.split()[1]
    x, y = (next(iter(step.arguments.values())) for step in lookups)
    order = rng.choice(
        (
            f"get the {attribute} of {x} and the {attribute} of {y} and add them",
            f"add the {attribute} of {x} and the {attribute} of {y}",
        )
    )
    questions = (f"What is the {attribute} of {x} plus the {attribute} of {y}?",)
    steps = (*lookups, sum_step(rng, add, a, b))
    return Task(order, questions, steps, f"The sum is {a + b}.")


def read_lookup(rng: Random, read: Tool, make: Callable[[Random], Task]) -> Task:
    """Look up something for what a file names."""
    path, lookup = a_file(rng), make(rng)
    value = next(iter(lookup.steps[0].arguments.values()))
    attribute = lookup.report.split()[1]
    order = rng.choice(
        (
            f"read {path} and get the {attribute} of what it names",
            f"read {path} and look up the {attribute} of the thing in it",
        )
    )
    questions = (f"What is the {attribute} of the thing in {path}?",)
    steps = (Step(read, {read.arguments[0]: path}, str(value)), lookup.steps[0])
    return Task(order, questions, steps, lookup.report)
