"""Tools of OpenAI's responses API: what the model is told of each, and what it is left without.

Does not know HTTP.
"""

from dataclasses import dataclass
from typing import Any

from .problem import Problem

# What OpenAI's servers run. Codex offers these with every request and asks for none, so the model
# is not told of them, and the response says so. Any other tool that is missing is refused.
LEFT_OUT = ("web_search", "image_generation", "tool_search")
TEXT_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "the text of the call"}},
    "required": ["input"],
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool: its name for the model, its name and namespace for the client, and its fields.

    `is_text`: a custom tool, called with a text; the model gives that as the argument `input`.
    """

    told: str
    name: str
    fields: dict[str, Any]
    namespace: str | None = None
    is_text: bool = False

    @property
    def grammar(self) -> str | None:
        """What the text of a custom tool has to be like; None where it is free."""
        form = self.fields.get("format")
        if not isinstance(form, dict) or form.get("type") != "grammar":
            return None
        return str(form.get("definition"))

    @property
    def function(self) -> dict[str, Any]:
        """The tool in the form that chat templates read."""
        about, parameters = self.fields.get("description") or "", self.fields.get("parameters")
        if self.is_text:
            if self.grammar is not None:
                about += f"\nThe input follows this grammar:\n{self.grammar}"
            parameters = TEXT_INPUT
        function = {"name": self.told, "description": about, "parameters": parameters or {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Offers:
    """A request's tools. `ignored` are the fields of the request that change nothing here."""

    all: tuple[Offer, ...] = ()
    ignored: tuple[str, ...] = ()

    def told(self, name: str) -> Offer | None:
        """The tool that the model calls so."""
        return next((one for one in self.all if one.told == name), None)


def offers_of(tools: list[Any]) -> Offers:
    """The tools. Problem 400 for one that cannot be had."""
    found: list[Offer] = []
    ignored: list[str] = []
    for number, tool in enumerate(tools):
        place = f"tools.{number}"
        if not isinstance(tool, dict):
            raise Problem(400, f"{place} is not an object.", place)
        kind = tool.get("type")
        if isinstance(kind, str) and kind.startswith(LEFT_OUT):
            ignored.append(f"{place} ({kind:.40})")
        elif kind == "namespace":
            inner = tool.get("tools")
            if not isinstance(inner, list):
                raise Problem(400, f"{place}.tools must be a list.", f"{place}.tools")
            name = text(tool, "name", place)
            found += [offer_of(one, f"{place}.tools.{n}", name) for n, one in enumerate(inner)]
        else:
            found.append(offer_of(tool, place))
        if kind == "custom" and found[-1].grammar is not None:
            ignored.append(f"{place}.format (the model is told of it, and not forced)")
    return Offers(tuple(found), tuple(ignored))


def offer_of(tool: Any, place: str, namespace: str | None = None) -> Offer:
    """One tool that the client runs."""
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
    told = name if namespace is None else f"{namespace.removesuffix('__')}__{name}"
    return Offer(told, name, tool, namespace, is_text=kind == "custom")


def choice_of(choice: Any, offers: Offers) -> Any:
    """A tool_choice in the words of OpenAI's chat API."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") in ("function", "custom"):
        name = text(choice, "name", "tool_choice")
        found = next((one.told for one in offers.all if name in (one.told, one.name)), name)
        return {"type": "function", "function": {"name": found}}
    raise Problem(
        400,
        f"tool_choice cannot be of the type '{choice.get('type')!s:.40}': give auto, none, "
        "required, or a function.",
        "tool_choice",
    )


def text(fields: dict[str, Any], name: str, place: str) -> str:
    """A field that is a text. Problem 400 where it is not."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise Problem(400, f"{place}.{name} must be a text.", f"{place}.{name}")
    return value
