"""A lower bound for the tokens of an answer that follows a grammar."""

import json
from collections.abc import Iterable
from itertools import takewhile
from operator import eq
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar, parse_schema

from .tool_calls import MAX_DEPTH, resolve_reference

MAX_ITEMS = 1000  # of an array that are counted
UNIONS = ("anyOf", "oneOf", "allOf", "not", "if", "x-guidance")


def required_text(grammar: Grammar) -> bytes:
    """Bytes that every answer has in this order, with others between them; may be empty.

    Those of a schema are its marks and the names of its required properties. Other kinds of
    grammars have none here.
    """
    if grammar.kind != "json_schema":
        return b"{}" if grammar.kind == "json_object" else b""
    schema = parse_schema(grammar.text)
    return required_json(schema, schema).encode("utf-8", "replace")


def required_json(schema: Any, root: dict[str, Any], depth: int = 0) -> str:
    """The required text of one schema; `root` is the one that references are resolved in."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH or any(word in schema for word in UNIONS):
        return ""
    if "$ref" in schema:
        try:
            return required_json(resolve_reference(schema["$ref"], root, ""), root, depth + 1)
        except UsageError:
            return ""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return required_choice(values)
    match schema.get("type"):
        case "object":
            needed = schema.get("required") or ()
            properties = schema.get("properties") or {}
            parts = [
                f"{json_text(name)}:{required_json(value, root, depth + 1)}"
                for name, value in properties.items()
                if name in needed
            ]
            return "{" + ",".join(parts) + "}"
        case "array":
            items = "" if "prefixItems" in schema else schema.get("items")
            count = min(schema.get("minItems", 0), MAX_ITEMS)
            return "[" + ",".join([required_json(items, root, depth + 1)] * count) + "]"
        case "string":
            return '""'
        case "null":
            return "null"
    return ""


def required_choice(values: list[Any]) -> str:
    """The required text of an enum: of strings their common beginning, in quotes."""
    if not values or not all(isinstance(value, str) for value in values):
        return ""
    first = min(values)  # in order, so that the first and the last differ at the earliest place
    common = sum(takewhile(bool, map(eq, first, max(values))))
    return json_text(first[:common])


def json_text(text: str) -> str:
    """A string in JSON as llguidance writes it, where every character stands for itself."""
    return json.dumps(text, ensure_ascii=False)


def fewest_tokens(required: bytes, vocabulary: Iterable[bytes], most: int) -> int:
    """At least how many tokens a text takes that has the `required` bytes in order.

    Counts no further than `most` + 1. vocabulary: the bytes of each token.
    """
    others = bytes({*range(256)} - {*required})
    pieces = {token.translate(None, others) for token in vocabulary}
    count = 0
    while required and count <= most:
        required = required[max(count_in_order(required, piece) for piece in pieces) :]
        count += 1
    return count


def count_in_order(required: bytes, piece: bytes) -> int:
    """How many of the first required bytes a piece has in their order."""
    place = 0
    for count, byte in enumerate(required):
        place = piece.find(byte, place) + 1
        if not place:
            return count
    return len(required)
