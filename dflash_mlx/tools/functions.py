"""Tools, and how a Python function becomes one."""

import inspect
import json
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dflash_mlx.errors import UsageError

JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function's arguments, from its annotations.

    Raises UsageError for a type that JSON does not have, and for arguments without names.
    """
    name = function.__name__
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(
                f"{name} takes '{parameter}', and a model gives arguments by their names.",
                hint="name each argument",
            )
        key = parameter.name
        schema = schema_of(hints[key], f"{name}({key})") if key in hints else {}
        if parameter.default is parameter.empty:
            required.append(key)
        else:
            schema = {**schema, "default": parameter.default}
        properties[key] = schema
    return {"type": "object", "properties": properties, "required": required}


def schema_of(annotation: Any, label: str) -> dict[str, Any]:
    """The JSON schema of a type. label: names the argument in errors."""
    origin = get_origin(annotation)
    args = get_args(annotation)
    if annotation is Any:
        return {}
    if annotation in JSON_TYPES:
        return {"type": JSON_TYPES[annotation]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(option, label) for option in args]}
    if annotation is list or origin is list:
        items = schema_of(args[0], label) if args else {}
        return {"type": "array", "items": items}
    if annotation is dict or (origin is dict and args[0] is str):
        values = {"additionalProperties": schema_of(args[1], label)} if args else {}
        return {"type": "object", **values}
    type_name = getattr(annotation, "__name__", annotation)
    raise UsageError(
        f"{label} is of the type {type_name}, which JSON does not have.",
        hint="use str, int, float, bool, list, dict[str, ...], Literal, or an own Tool",
    )


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. parameters: the JSON schema of its arguments, an object.

    run: takes the arguments and returns the result as text; the model is told of its exceptions.
    server: the name of the tool's MCP server, key: the tool's name on this server; empty for a tool
    of this program.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[[dict[str, Any]], str]
    server: str = ""
    key: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


def tool_of(function: Callable[..., Any]) -> Tool:
    """Make a tool of a Python function with its name, docstring and annotations.

    A result that is not a string becomes JSON. Raises UsageError as `parameters_of`, and for a
    coroutine function.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise UsageError(
            f"{function!r:.60} has no name that a model could call.",
            hint="give a function, or a Tool",
        )
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"{name} is a coroutine function, and calls are not awaited.",
            hint="wrap it: def f(...): return asyncio.run(...)",
        )
    signature = inspect.signature(function)

    def run(arguments: dict[str, Any]) -> str:
        signature.bind(**arguments)  # raises a TypeError that names a missing argument
        result = function(**arguments)
        return result if isinstance(result, str) else json.dumps(result, default=str)

    return Tool(name, inspect.getdoc(function) or "", parameters_of(function), run)


def tools_of(functions: Iterable[Tool | Callable[..., Any]]) -> list[Tool]:
    """Tools of functions; tools stay as they are. Raises UsageError if two have the same name."""
    tools = [item if isinstance(item, Tool) else tool_of(item) for item in functions]
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there are two tools named '{name}'.", hint="rename one of them")
    return tools
