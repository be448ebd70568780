"""The input items and tools of OpenAI's responses API as messages and tools of its chat API."""

from dataclasses import dataclass
from typing import Any

from .chat_messages import History, arguments_of, field, objects, role_of, text_of
from .protocol import Problem, wrong

ROLES = ("user", "assistant", "system", "developer")

# Tools that OpenAI's servers run. Codex lists them in every request without needing them, so they
# are left out of the prompt, and the response says so. Other unsupported tools are refused.
HOSTED_TOOLS = ("web_search", "image_generation", "tool_search")
TEXT_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "the text of the call"}},
    "required": ["input"],
}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs.

    model_name: its name in the prompt. name, namespace: for the client. fields: of the request.
    is_text: a custom tool, which is called with a text; the model gives it as argument `input`.
    """

    model_name: str
    name: str
    fields: dict[str, Any]
    namespace: str | None = None
    is_text: bool = False

    @property
    def grammar(self) -> str | None:
        form = self.fields.get("format")
        if not isinstance(form, dict) or form.get("type") != "grammar":
            return None
        return str(form.get("definition"))

    @property
    def function(self) -> dict[str, Any]:
        description = self.fields.get("description") or ""
        parameters = self.fields.get("parameters")
        if self.is_text:
            if self.grammar is not None:
                description += f"\nThe input follows this grammar:\n{self.grammar}"
            parameters = TEXT_INPUT
        function = {
            "name": self.model_name,
            "description": description,
            "parameters": parameters or {},
        }
        return {"type": "function", "function": function}


def read_tools(body_tools: list[Any]) -> tuple[list[ClientTool], list[str]]:
    """The tools of a request, and its fields without an effect.

    Raises Problem 400 for a tool that is wrong or not supported.
    """
    tools: list[ClientTool] = []
    ignored: list[str] = []
    for place, body_tool in objects(body_tools, "tools"):
        kind = body_tool.get("type")
        if isinstance(kind, str) and kind.startswith(HOSTED_TOOLS):
            ignored.append(f"{place} ({kind:.40})")
        elif kind == "namespace":
            inner_tools = field(body_tool, "tools", list, place)
            name = field(body_tool, "name", str, place)
            for inner_number, inner in enumerate(inner_tools):
                tools.append(read_tool(inner, f"{place}.tools.{inner_number}", name))
        else:
            tools.append(read_tool(body_tool, place))
        if kind == "custom" and tools[-1].grammar is not None:
            ignored.append(f"{place}.format (the model is told of it, and not forced)")
    return tools, ignored


def read_tool(tool: Any, place: str, namespace: str | None = None) -> ClientTool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        why = "this server offers only tools that the client runs, of the types function and custom"
        message = f"{place} is of the type '{kind!s:.40}': {why}."
        raise Problem(400, message, f"{place}.type")
    name = field(tool, "name", str, place)
    if tool.get("description") is not None:
        field(tool, "description", str, place)
    model_name = name if namespace is None else f"{namespace.removesuffix('__')}__{name}"
    return ClientTool(model_name, name, tool, namespace, is_text=kind == "custom")


def choice_of(choice: Any, tools: list[ClientTool]) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") in ("function", "custom"):
        name = field(choice, "name", str, "tool_choice")
        matches = [tool.model_name for tool in tools if name in (tool.model_name, tool.name)]
        return {"type": "function", "function": {"name": matches[0] if matches else name}}
    why = "give auto, none, required, or a function"
    raise wrong("tool_choice", f"cannot be of the type '{choice.get('type')!s:.40}': {why}")


def chat_messages(
    instructions: str | None, body_input: Any, tools: list[ClientTool]
) -> list[dict[str, Any]]:
    history = History()
    if instructions:
        history.messages.append({"role": "system", "content": instructions})
    if isinstance(body_input, str):
        body_input = [{"role": "user", "content": body_input}]
    if not body_input:
        raise wrong("input", "is empty")
    for place, item in objects(body_input, "input"):
        add_item(history, item, place, tools)
    return history.messages


def add_item(history: History, item: dict[str, Any], place: str, tools: list[ClientTool]) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        role = role_of(item, ROLES, place)
        content = text_of(item.get("content"), f"{place}.content")
        if content is None:
            raise wrong(f"{place}.content", "is missing")
        if role == "assistant":
            history.assistant("content", content)
        else:
            history.messages.append({"role": role, "content": content})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise wrong(place, "must have lists of parts")
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        if any(texts):
            history.assistant("reasoning_content", "\n".join(texts))
    elif kind in ("function_call", "custom_tool_call"):
        call_id = field(item, "call_id", str, place)
        name = field(item, "name", str, place)
        if kind == "custom_tool_call":
            arguments: Any = {"input": field(item, "input", str, place)}
        else:
            text = field(item, "arguments", str, place)
            arguments = arguments_of(text, f"{place}.arguments")
        key = (item.get("namespace"), name)
        found = (tool.model_name for tool in tools if (tool.namespace, tool.name) == key)
        history.call(call_id, next(found, name), arguments)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        call_id = field(item, "call_id", str, place)
        history.result(call_id, text_of(item.get("output"), f"{place}.output") or "")
    else:
        why = "nothing is kept here" if kind == "item_reference" else "it cannot be read"
        raise wrong(place, f"is of the type '{kind!s:.40}': {why}")
