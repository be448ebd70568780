"""A tool as a model is told of it and as it is run; a Python function as a tool.

Does not know who calls it.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import UsageError

from .function_schema import parameters_of

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
