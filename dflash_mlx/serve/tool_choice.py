"""Tools of a chat request, and whether and which of them the answer calls.

`required` and a function's name are kept by a grammar of the model's form of calls; so is an
answer in a given form, which calls may come instead of.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import Pair
from dflash_mlx.structure.calls import forced_calls
from dflash_mlx.structure.grammar import Grammar

from .fields import Fields, check_tools
from .problem import Problem

Told = list[dict[str, Any]]


class Function(Fields):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[\w.\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Fields):
    """One tool."""

    type: Literal["function"]
    function: Function


@dataclass(frozen=True, slots=True)
class Chosen:
    """The form of the answer, and the tools that the model is told of.

    calls: the tools as a parser has to read calls of them; None where none are looked for.
    one_call: the first one ends the answer.
    """

    grammar: Grammar | None
    told: Told
    calls: Told | None
    one_call: bool = False


def chosen_tools(
    tools: list[Tool] | None,
    choice: str | dict[str, Any] | None,
    parallel: bool | None,
    grammar: Grammar | None,
    pair: Pair,
) -> Chosen:
    """What a request's fields say; `grammar` is of an answer that calls nothing.

    A named function is called once; `required` may call several times, unless `parallel` is False.
    Problem 400 for what cannot be had.
    """
    told = [tool.model_dump(exclude_none=True) for tool in tools or []]
    name = named(choice)
    kind = "named" if name else choice or "auto"
    if kind not in ("auto", "none", "required", "named"):
        raise Problem(
            400, "tool_choice must be auto, none, required, or a function.", "tool_choice"
        )
    if kind in ("required", "named") and not told:
        raise Problem(400, "tool_choice needs tools.", "tool_choice")
    if kind == "none" or not told:
        return Chosen(grammar, [], None)
    check_tools(pair)
    may = [tool for tool in told if name in (None, tool["function"]["name"])]
    if not may:
        raise Problem(
            400, f"tool_choice names '{name:.100}', which is none of the tools.", "tool_choice"
        )
    one = parallel is False or kind == "named"
    if kind == "auto" and grammar is None:
        return Chosen(None, told, told, one_call=one)
    what = "tool_choice" if kind != "auto" else "response_format"
    try:
        forced = forced_calls(
            pair.target.tokenizer, may, most_one=one, otherwise=grammar if kind == "auto" else None
        )
    except DFlashError as error:
        beside = " beside tools" if kind == "auto" else ""
        message = f"{what}{beside} cannot be kept: {error.message}"
        raise Problem(400, f"{message} ({error.hint})", what) from error
    return Chosen(forced.grammar, told, list(forced.tools), one_call=one)


def named(choice: Any) -> str | None:
    """The function that a choice names."""
    if not isinstance(choice, dict):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise Problem(
            400, "tool_choice must be auto, none, required, or a function.", "tool_choice"
        )
    return name
