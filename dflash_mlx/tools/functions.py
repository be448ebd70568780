"""A tool as a model is told of it and as it is run; a Python function as a tool."""

import inspect
import json
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dflash_mlx.errors import UsageError

# The JSON schema of a Python function's arguments, from its annotations.

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's arguments: an object. Raises UsageError for what JSON has not."""
    name = function.__name__
    hints = get_type_hints(function)
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
    origin = get_origin(kind)
    inner = get_args(kind)
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


Run = Callable[[dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: `parameters` is the JSON schema of its arguments, an object.

    `run` gets the arguments and gives the result as text; whatever it raises is told to the model.
    `server` is the name of the MCP server it is of, and `key` what it is called there.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    run: Run
    server: str = ""
    key: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the form that chat templates read."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


def tool_of(function: Callable[..., Any]) -> Tool:
    """A Python function as a tool: its name, its docstring, and the types of its arguments.

    A result that is no text becomes JSON. Raises UsageError for a type that JSON does not have, for
    arguments without names, and for a coroutine function.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise UsageError(
            f"{function!r:.60} has no name that a model could call.",
            hint="give a function, or a Tool",
        )
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"{name} is a coroutine function, and nobody awaits a call.",
            hint="wrap it: def f(...): return asyncio.run(...)",
        )
    shape = inspect.signature(function)

    def run(arguments: dict[str, Any]) -> str:
        shape.bind(**arguments)  # names what is missing without the function's insides
        found = function(**arguments)
        return found if isinstance(found, str) else json.dumps(found, default=str)

    return Tool(name, inspect.getdoc(function) or "", parameters_of(function), run)


def tools_of(given: Any) -> list[Tool]:
    """Tools and functions as tools. Raises UsageError for two of one name."""
    found = [one if isinstance(one, Tool) else tool_of(one) for one in given]
    names = [tool.name for tool in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there are two tools named '{name}'.", hint="rename one of them")
    return found
