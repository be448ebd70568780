"""The tools of a chat request, and which of them the answer may or must call."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dflash_mlx.constrained.tool_calls import forced_calls
from dflash_mlx.errors import DFlashError
from dflash_mlx.grammar import Grammar
from dflash_mlx.pair import Pair

from .body import Fields
from .protocol import Problem, check_tools

ToolSchemas = list[dict[str, Any]]


class Function(Fields):
    name: Annotated[str, Field(pattern=r"^[\w.\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Fields):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: Function

    @property
    def for_template(self) -> dict[str, Any]:
        """The tool without fields that chat templates do not know."""
        function = self.function.model_dump(include=set(Function.model_fields), exclude_none=True)
        return {"type": self.type, "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """grammar: of the answer. parser_tools, single_call: as in `AnswerRequest`."""

    grammar: Grammar | None
    tools: ToolSchemas
    parser_tools: ToolSchemas | None
    single_call: bool = False


def tool_use(
    tools: list[Tool] | None,
    choice: str | dict[str, Any] | None,
    parallel: bool | None,
    grammar: Grammar | None,
    pair: Pair,
) -> ToolUse:
    """Convert the fields for tools. `grammar`: the grammar of an answer without calls.

    A named function is called once; `required` allows several calls, unless `parallel` is False.
    Raises Problem 400 for fields that contradict each other or are not supported.
    """
    schemas = [tool.for_template for tool in tools or []]
    name = function_name(choice)
    kind = "named" if name else choice or "auto"
    if kind not in ("auto", "none", "required", "named"):
        raise Problem(
            400, "tool_choice must be auto, none, required, or a function.", "tool_choice"
        )
    if kind in ("required", "named") and not schemas:
        raise Problem(400, "tool_choice needs tools.", "tool_choice")
    if kind == "none" or not schemas:
        return ToolUse(grammar, [], None)
    check_tools(pair)
    callable_tools = [tool for tool in schemas if name in (None, tool["function"]["name"])]
    if not callable_tools:
        raise Problem(
            400, f"tool_choice names '{name:.100}', which is none of the tools.", "tool_choice"
        )
    single_call = parallel is False or kind == "named"
    if kind == "auto" and grammar is None:
        return ToolUse(None, schemas, schemas, single_call)
    field = "tool_choice" if kind != "auto" else "response_format"
    try:
        forced = forced_calls(
            pair.tokenizer,
            callable_tools,
            single_call=single_call,
            otherwise=grammar if kind == "auto" else None,
        )
    except DFlashError as error:
        beside = " beside tools" if kind == "auto" else ""
        message = f"{field}{beside} cannot be kept: {error.message}"
        raise Problem(400, f"{message} ({error.hint})", field) from error
    return ToolUse(forced.grammar, schemas, list(forced.tools), single_call)


def function_name(choice: Any) -> str | None:
    if not isinstance(choice, dict):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise Problem(
            400, "tool_choice must be auto, none, required, or a function.", "tool_choice"
        )
    return name
