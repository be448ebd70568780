"""Tools that the toy is taught to call: their names and JSON schemas, varied as programs vary them.

Five kinds: read a file, list a folder, add numbers, tell the time, and any other tool, whose name
and arguments are made up anew each time, so that the model has to read the schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from read_words import read_words
from wording import invented_word

PHRASES = read_words("tool_schemas")
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: what the model sees of it, and the names of its arguments in order."""

    schema: Schema
    name: str
    arguments: tuple[str, ...]


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


def worded(rng: Random, kind: str, arguments: Mapping[str, str]) -> Tool:
    """A tool of this kind, in one program's words."""
    words = PHRASES[kind]
    return schema(rng, rng.choice(words["names"]), rng.choice(words["texts"]), arguments)


def read_tool(rng: Random) -> Tool:
    """A tool that reads a file."""
    arguments = {rng.choice(PHRASES["read"]["arguments"]): "string"}
    return worded(rng, "read", arguments)


def list_tool(rng: Random) -> Tool:
    """A tool that lists a folder."""
    arguments = {rng.choice(PHRASES["list"]["arguments"]): "string"}
    return worded(rng, "list", arguments)


def add_tool(rng: Random) -> Tool:
    """A tool that adds two numbers, or now and then all numbers of a list."""
    kind = rng.choice(("integer", "number"))
    keys = rng.choice(PHRASES["add"]["arguments"])
    arguments: dict[str, str] = {key: kind for key in keys}
    if rng.random() < 0.15:
        arguments = {rng.choice(("numbers", "values")): "array"}
    return worded(rng, "add", arguments)


def time_tool(rng: Random) -> Tool:
    """A tool that tells the time; now and then with an optional zone."""
    optional = {rng.choice(("zone", "timezone", "city", "format")): "string"}
    arguments = optional if rng.random() < 0.25 else {}
    text = rng.choice(PHRASES["time"]["texts"])
    name = rng.choice(PHRASES["time"]["names"])
    return schema(rng, name, text, arguments, optional=len(arguments))


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
    verb, attribute = rng.choice(PHRASES["get_verbs"]), word_or_new(rng, PHRASES["attributes"])
    holder = word_or_new(rng, PHRASES["holders"], 0.15)
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
    verb = word_or_new(rng, PHRASES["act_verbs"], 0.15)
    noun = word_or_new(rng, PHRASES["act_nouns"])
    keys: list[str] = list(rng.sample(PHRASES["act_arguments"], rng.choice((1, 1, 2, 2, 3))))
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
