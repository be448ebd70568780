"""The tools of a request of OpenAI's responses API."""

from dataclasses import dataclass
from typing import Any

from .protocol import Problem

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
        """The grammar of a custom tool's text, if it has one."""
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


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The tools of a request. `ignored`: fields of the request without an effect."""

    all: tuple[ClientTool, ...] = ()
    ignored: tuple[str, ...] = ()

    def by_model_name(self, name: str) -> ClientTool | None:
        return next((tool for tool in self.all if tool.model_name == name), None)


def read_tools(body_tools: list[Any]) -> ClientTools:
    """Raises Problem 400 for a tool that is wrong or not supported."""
    tools: list[ClientTool] = []
    ignored: list[str] = []
    for number, body_tool in enumerate(body_tools):
        place = f"tools.{number}"
        if not isinstance(body_tool, dict):
            raise Problem(400, f"{place} is not an object.", place)
        kind = body_tool.get("type")
        if isinstance(kind, str) and kind.startswith(HOSTED_TOOLS):
            ignored.append(f"{place} ({kind:.40})")
        elif kind == "namespace":
            inner_tools = body_tool.get("tools")
            if not isinstance(inner_tools, list):
                raise Problem(400, f"{place}.tools must be a list.", f"{place}.tools")
            name = text(body_tool, "name", place)
            for inner_number, inner in enumerate(inner_tools):
                tools.append(read_tool(inner, f"{place}.tools.{inner_number}", name))
        else:
            tools.append(read_tool(body_tool, place))
        if kind == "custom" and tools[-1].grammar is not None:
            ignored.append(f"{place}.format (the model is told of it, and not forced)")
    return ClientTools(tuple(tools), tuple(ignored))


def read_tool(tool: Any, place: str, namespace: str | None = None) -> ClientTool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise Problem(
            400,
            f"{place} is of the type '{kind!s:.40}': this server offers only tools that the "
            "client runs, of the types function and custom.",
            f"{place}.type",
        )
    name = text(tool, "name", place)
    if tool.get("description") is not None:
        text(tool, "description", place)
    model_name = name if namespace is None else f"{namespace.removesuffix('__')}__{name}"
    return ClientTool(model_name, name, tool, namespace, is_text=kind == "custom")


def choice_of(choice: Any, tools: ClientTools) -> Any:
    """A tool_choice in the form of OpenAI's chat API."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") in ("function", "custom"):
        name = text(choice, "name", "tool_choice")
        matches = [tool.model_name for tool in tools.all if name in (tool.model_name, tool.name)]
        return {"type": "function", "function": {"name": matches[0] if matches else name}}
    raise Problem(
        400,
        f"tool_choice cannot be of the type '{choice.get('type')!s:.40}': give auto, none, "
        "required, or a function.",
        "tool_choice",
    )


def text(fields: dict[str, Any], name: str, place: str) -> str:
    """Raises Problem 400 if the field is missing or no text."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise Problem(400, f"{place}.{name} must be a text.", f"{place}.{name}")
    return value
