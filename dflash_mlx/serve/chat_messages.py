"""The messages and tools of OpenAI's chat API in the form of chat templates."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dflash_mlx.chat.call_json import json_object
from dflash_mlx.chat.messages import Messages
from dflash_mlx.chat.tool_parser import without_tools
from dflash_mlx.constrained.tool_calls import forced_calls
from dflash_mlx.errors import DFlashError
from dflash_mlx.grammar import Grammar
from dflash_mlx.pair import Pair

from .body import Fields
from .protocol import Problem, wrong

ROLES = ("system", "developer", "user", "assistant", "tool")
TURN_FIELDS = ("reasoning_content", "content", "tool_calls")  # in their order in a turn
TEXTS = ("text", "input_text", "output_text", "refusal")

# Objects inside a body. `place` is their path in it, for errors.


def objects(values: list[Any], place: str) -> list[tuple[str, dict[str, Any]]]:
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise wrong(f"{place}.{number}", "is not an object")
    return [(f"{place}.{number}", value) for number, value in enumerate(values)]


def field(fields: dict[str, Any], name: str, kind: type, place: str) -> Any:
    if not isinstance(fields.get(name), kind):
        what = {str: "a text", dict: "an object", list: "a list"}[kind]
        raise wrong(f"{place}.{name}", f"must be {what}")
    return fields[name]


def role_of(message: dict[str, Any], roles: tuple[str, ...], place: str) -> str:
    if message.get("role") not in roles:
        raise wrong(f"{place}.role", f"must be one of {', '.join(roles)}")
    return message["role"]


def arguments_of(text: str, place: str) -> Any:
    text = text or "{}"
    try:
        return json.loads(json_object(text) or text)
    except (ValueError, RecursionError):
        raise wrong(place, "is not JSON") from None


def text_of(content: Any, place: str) -> str | None:
    """A content as text; None without one. Raises Problem 400 for images and other parts."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(place, "must be a text or a list of parts")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXTS:
            raise unreadable(kind, f"{place}.{number}")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise wrong(f"{place}.{number}", "has no text")
        texts.append(text)
    return "\n".join(texts)


def unreadable(kind: Any, place: str) -> Problem:
    return wrong(place, f"is of the type '{kind!s:.40}': this server reads text only")


class History:
    """Messages made of the items of other APIs.

    in_order: an assistant's turn ends where a field follows one that comes after it in a turn.
    """

    def __init__(self, *, in_order: bool = True):
        self.messages: list[dict[str, Any]] = []
        self._in_order = in_order
        self._names: dict[str, str] = {}  # of tools, by call id

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        self._names[call_id] = name
        function = {"name": name, "arguments": arguments}
        self.assistant("tool_calls", [{"id": call_id, "type": "function", "function": function}])

    def result(self, call_id: str, text: str) -> None:
        name = {"name": self._names[call_id]} if call_id in self._names else {}
        self.messages.append({"role": "tool", "tool_call_id": call_id, **name, "content": text})

    def assistant(self, field: str, value: Any) -> None:
        """Add to the assistant's turn, or begin a new one."""
        last = self.messages[-1] if self.messages else {"role": ""}
        later = TURN_FIELDS[TURN_FIELDS.index(field) + 1 :] if self._in_order else ()
        if last["role"] != "assistant" or any(last.get(name) for name in later):
            self.messages.append({"role": "assistant", field: value})
        elif isinstance(value, str) and last.get(field):
            last[field] += "\n" + value
        else:
            last[field] = last.get(field, type(value)()) + value


def template_messages(messages: list[Any]) -> Messages:
    """Raises Problem 400 that names the wrong message and field.

    System messages at the start become one, because many templates allow only one.
    """
    if not messages:
        raise wrong("messages", "is empty")
    result: Messages = []
    for place, body_message in objects(messages, "messages"):
        message = read_message(body_message, place)
        is_system = message["role"] == "system"
        if is_system and result and all(earlier["role"] == "system" for earlier in result):
            result[0]["content"] += "\n\n" + message["content"]
        else:
            result.append(message)
    return result


def read_message(message: dict[str, Any], place: str) -> dict[str, Any]:
    role = role_of(message, ROLES, place)
    if role == "developer":
        role = "system"
    content = text_of(message.get("content"), f"{place}.content")
    if content is None and role != "assistant":
        raise wrong(f"{place}.content", "is missing")
    result: dict[str, Any] = {"role": role, "content": content or ""}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            result["reasoning_content"] = reasoning
        if calls := message.get("tool_calls"):
            result["tool_calls"] = read_calls(calls, f"{place}.tool_calls")
            if isinstance(reasoning, str) and not content:
                result["thinking"] = reasoning  # gpt-oss's template refuses it beside content
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "tool" and "tool_call_id" not in result:
        raise wrong(f"{place}.tool_call_id", "is missing")
    return result


def read_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    result = []
    for number, call in enumerate(calls if isinstance(calls, list) else [None]):
        at = f"{place}.{number}"
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong(at, "is no call of a function")
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):
            arguments = arguments_of(arguments, f"{at}.function.arguments")
        named = {"name": function["name"], "arguments": arguments}
        result.append({"type": "function", "id": str(call.get("id", "")), "function": named})
    return result


# Tools, and which of them the answer may or must call

ToolSchemas = list[dict[str, Any]]


class Function(Fields):
    name: Annotated[str, Field(pattern=r"^[\w.\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Fields):
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
    kind, name = "auto" if choice in (None, "") else choice, None
    if isinstance(kind, dict):
        function = kind.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        kind = "named" if kind.get("type") == "function" and isinstance(name, str) else ""
    elif kind not in ("auto", "none", "required"):
        kind = ""
    if not kind:
        raise wrong("tool_choice", "must be auto, none, required, or a function")
    if kind in ("required", "named") and not schemas:
        raise wrong("tool_choice", "needs tools")
    if kind == "none" or not schemas:
        return ToolUse(grammar, [], None)
    if why := without_tools(pair.template, pair.tokenizer):
        message = f"this model {why}. (Leave tools out, or serve a model that calls tools.)"
        raise Problem(400, message, "tools")
    callable_tools = [tool for tool in schemas if name in (None, tool["function"]["name"])]
    if not callable_tools:
        raise wrong("tool_choice", f"names '{name:.100}', which is none of the tools")
    single_call = parallel is False or kind == "named"
    if kind == "auto" and grammar is None:
        return ToolUse(None, schemas, schemas, single_call)
    try:
        forced = forced_calls(
            pair.tokenizer,
            callable_tools,
            single_call=single_call,
            otherwise=grammar if kind == "auto" else None,
        )
    except DFlashError as error:
        asked = "tool_choice" if kind != "auto" else "response_format"
        beside = " beside tools" if kind == "auto" else ""
        message = f"{asked}{beside} cannot be kept: {error.message}"
        raise Problem(400, f"{message} ({error.hint})", asked) from error
    return ToolUse(forced.grammar, schemas, list(forced.tools), single_call)
