"""Tools that the toy is taught to call: their names and JSON schemas, varied as programs vary them.

Five kinds: read a file, list a folder, add numbers, tell the time, and any other tool, whose name
and arguments are made up anew each time, so that the model has to read the schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from wording import invented_word

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: what the model sees of it, and the names of its arguments in order."""

    schema: Schema
    name: str
    arguments: tuple[str, ...]


READ_NAMES = "read_file file_read open_file read get_file load_file read_text fs_read readFile cat"
READ_TEXTS = (
    "Read a file.",
    "Read a text file and return its content.",
    "Return the text of a file.",
    "Opens a file and gives its content",
    "Get the contents of a file at a path.",
    "read a file from disk",
)
READ_ARGUMENTS = "path file filename file_path name"
LIST_NAMES = "list_folder list_files ls list_directory list_dir show_folder listFiles dir folder"
LIST_TEXTS = (
    "List a folder.",
    "List the files in a folder.",
    "Return the names of all files in a directory.",
    "Shows what is in a folder",
    "List directory contents.",
    "names of the files in a folder",
)
LIST_ARGUMENTS = "path folder directory dir name"
ADD_NAMES = "add add_numbers sum plus calculate_sum addNumbers add_two sum_numbers adder"
ADD_TEXTS = (
    "Add two numbers.",
    "Add numbers and return the sum.",
    "Return the sum of two numbers.",
    "Adds a and b",
    "Compute a sum.",
    "sum of two numbers",
)
ADD_ARGUMENTS = ("a b", "x y", "first second", "left right", "number1 number2", "n m", "a b")
TIME_NAMES = "get_time time now current_time clock getTime what_time time_now"
TIME_TEXTS = (
    "Get the time.",
    "Return the current time.",
    "Tells what time it is",
    "The time now.",
    "Get the current time of day.",
)
GET_VERBS = "get find look_up fetch check show read query lookup search tell".split()
ATTRIBUTES = (
    "price weight colour status weather phone address email temperature level score owner size "
    "stock rating age height speed name city title author date balance version team rank depth "
    "length distance population humidity forecast job salary room floor language symbol rate "
    "battery load color boss nickname birthday value limit mood state code number"
).split()
HOLDERS = (
    "item product name city person user key word place id thing country room order ticket book "
    "song car server account customer pet plant host team"
).split()
ACT_VERBS = (
    "send delete create start stop open close book order lock rename move copy print save play "
    "update remove post run set make build clean pause resume publish archive share mark"
).split()
ACT_NOUNS = (
    "message mail file note task event light door alarm timer table order ticket song list "
    "backup report page user job window reminder meeting room invoice photo comment branch box"
).split()
ACT_ARGUMENTS = (
    "name title text to target id path time date size color count amount level mode user room "
    "subject body label key value day speed note place volume format"
).split()


def schema(
    rng: Random, name: str, text: str, arguments: Mapping[str, str], optional: int = 0
) -> Tool:
    """A tool whose arguments have these JSON types, written as one of several programs would.

    The last `optional` arguments are not required.
    """
    described, titled = rng.random() < 0.3, rng.random() < 0.3
    properties: dict[str, Schema] = {}
    for key, kind in arguments.items():
        words = key.replace("_", " ")
        value: Schema = {}
        if titled:
            value["title"] = words.title()
        if described:
            value["description"] = rng.choice((f"The {words}.", f"the {words} to use", words))
        value["type"] = kind
        if kind == "array":
            value["items"] = {"type": "number"}
        properties[key] = value
    required = list(arguments)[: len(arguments) - optional]
    parameters: Schema = {"type": "object", "properties": properties}
    if required or rng.random() < 0.5:
        parameters["required"] = required
    if titled:
        parameters["title"] = f"{name}Arguments"
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    function = {"name": name, "description": text, "parameters": parameters}
    return Tool({"type": "function", "function": function}, name, tuple(arguments))


def one_of(rng: Random, words: str) -> str:
    return rng.choice(words.split())


def read_tool(rng: Random) -> Tool:
    """A tool that reads a file."""
    arguments = {one_of(rng, READ_ARGUMENTS): "string"}
    return schema(rng, one_of(rng, READ_NAMES), rng.choice(READ_TEXTS), arguments)


def list_tool(rng: Random) -> Tool:
    """A tool that lists a folder."""
    arguments = {one_of(rng, LIST_ARGUMENTS): "string"}
    return schema(rng, one_of(rng, LIST_NAMES), rng.choice(LIST_TEXTS), arguments)


def add_tool(rng: Random) -> Tool:
    """A tool that adds two numbers, or now and then all numbers of a list."""
    kind = rng.choice(("integer", "number"))
    keys = rng.choice(ADD_ARGUMENTS).split()
    arguments: dict[str, str] = {key: kind for key in keys}
    if rng.random() < 0.15:
        arguments = {rng.choice(("numbers", "values")): "array"}
    return schema(rng, one_of(rng, ADD_NAMES), rng.choice(ADD_TEXTS), arguments)


def time_tool(rng: Random) -> Tool:
    """A tool that tells the time; now and then with an optional zone."""
    optional = {rng.choice(("zone", "timezone", "city", "format")): "string"}
    arguments = optional if rng.random() < 0.25 else {}
    texts = rng.choice(TIME_TEXTS)
    return schema(rng, one_of(rng, TIME_NAMES), texts, arguments, optional=len(arguments))


def word_or_new(rng: Random, words: Sequence[str], new: float = 0.25) -> str:
    """One of the words, or an invented one."""
    return invented_word(rng, 1, 2) if rng.random() < new else rng.choice(words)


def tool_name(rng: Random, *parts: str) -> str:
    """The parts as the name of a function: snake_case mostly, or camelCase."""
    if rng.random() < 0.15:
        words = "_".join(parts).split("_")
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return "_".join(parts)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A tool that finds an attribute of something: get_price(item)."""

    tool: Tool
    attribute: str


def lookup_tool(rng: Random) -> Lookup:
    """A tool that finds something out; mostly with one argument, a text."""
    verb, attribute = rng.choice(GET_VERBS), word_or_new(rng, ATTRIBUTES)
    holder = word_or_new(rng, HOLDERS, 0.15)
    said = verb.replace("_", " ").capitalize()
    text = rng.choice(
        (
            f"{said} the {attribute} of a {holder}.",
            f"{said} the {attribute} of the {holder}.",
            f"Returns the {attribute} for a {holder}",
            f"The {attribute} of a {holder}.",
            f"{said} {attribute}",
        )
    )
    name = tool_name(rng, verb, attribute) if rng.random() < 0.8 else attribute
    if rng.random() < 0.1:
        name = tool_name(rng, invented_word(rng), attribute)
    return Lookup(schema(rng, name, text, {holder: "string"}), attribute)


@dataclass(frozen=True, slots=True)
class Action:
    """A tool that does something: send_message(to, text). `kinds`: its arguments' JSON types."""

    tool: Tool
    verb: str
    noun: str
    kinds: tuple[str, ...]


def action_tool(rng: Random) -> Action:
    """A tool with one to three arguments of any type."""
    verb, noun = word_or_new(rng, ACT_VERBS, 0.15), word_or_new(rng, ACT_NOUNS)
    keys: list[str] = list(rng.sample(ACT_ARGUMENTS, rng.choice((1, 1, 2, 2, 3))))
    if rng.random() < 0.2:
        keys[0] = invented_word(rng, 2, 2)
    arguments = {key: rng.choice(("string", "string", "integer", "boolean")) for key in keys}
    text = rng.choice(
        (
            f"{verb.capitalize()} a {noun}.",
            f"{verb.capitalize()} the {noun}.",
            f"{verb.capitalize()}s a {noun}",
            f"Use this to {verb} a {noun}.",
            f"{noun}: {verb}",
        )
    )
    tool = schema(rng, tool_name(rng, verb, noun), text, arguments)
    return Action(tool, verb, noun, tuple(arguments.values()))
