"""The JSON schema of a Python function's arguments, from its annotations."""

import inspect
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dflash_mlx.errors import UsageError

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's arguments: an object. Raises UsageError for what JSON has not."""
    name, hints = function.__name__, get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for one in inspect.signature(function).parameters.values():
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise UsageError(
                f"{name} takes '{one}', and a model gives arguments by their names.",
                hint="name each argument",
            )
        schema = schema_of(hints[one.name], f"{name}({one.name})") if one.name in hints else {}
        if one.default is one.empty:
            required.append(one.name)
        else:
            schema = {**schema, "default": one.default}
        properties[one.name] = schema
    return {"type": "object", "properties": properties, "required": required}


def schema_of(kind: Any, place: str) -> dict[str, Any]:
    """The schema of one type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind in NAMES:
        return {"type": NAMES[kind]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one, place) for one in inner]}
    if kind is list or origin is list:
        items = schema_of(inner[0], place) if inner else {}
        return {"type": "array", "items": items}
    if kind is dict or (origin is dict and inner[0] is str):
        values = {"additionalProperties": schema_of(inner[1], place)} if inner else {}
        return {"type": "object", **values}
    raise UsageError(
        f"{place} is of the type {getattr(kind, '__name__', kind)}, which JSON does not have.",
        hint="use str, int, float, bool, list, dict[str, ...], Literal, or an own Tool",
    )
