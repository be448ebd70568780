"""The grammar of an answer that has to be a call of a tool, in the form of the target's family.

Arguments fit their JSON schema, without any that it does not name. Where a family writes them one
by one they come in the schema's order, a text may be anything that its parser reads as that text,
and a schema that allows several types is narrowed to one of them. Thinking may come first.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.call_formats import call_format
from dflash_mlx.errors import UsageError

from .arguments import Argument, argument_of, cannot, object_of
from .call_shapes import BREAK, CODES, NUMBER, SHAPES, Shape, Tags
from .call_texts import checked_choices, free_text
from .grammar import Grammar, parse_schema
from .source import WHITESPACE, check_grammar

TERMS = r"""
DIGITS: /[0-9]{1,4}/
THOUGHT: /(?s:.+)/
"""


@dataclass(frozen=True, slots=True)
class Forced:
    """The grammar of calls, and the tools as a parser has to read what follows it."""

    grammar: Grammar
    tools: tuple[dict[str, Any], ...]


def forced_calls(
    tokenizer: TokenizerWrapper,
    tools: Sequence[dict[str, Any]],
    *,
    most_one: bool = False,
    otherwise: Grammar | None = None,
) -> Forced:
    """What an answer follows that calls one of `tools`, or more of them unless `most_one`.

    tools: in the form of OpenAI's chat API. otherwise: a JSON grammar of an answer that calls
    nothing, which is allowed too. UsageError for a family whose calls cannot be forced, and for a
    tool that its form has no place for.
    """
    form = call_format(tokenizer)
    name = form.name if form else "none"
    added = tokenizer.get_added_vocab()
    if name == "mistral" and "[ARGS]" not in added:
        name = "mistral_list"
    if name not in SHAPES:
        raise UsageError(
            f"calls cannot be forced in this model's form of them ({name}).",
            hint="use tool_choice auto",
        )
    writer = Writer(SHAPES[name], added)
    return writer.write(tools, most_one=most_one, otherwise=otherwise, channels=name == "harmony")


@dataclass(slots=True)
class Writer:
    """Writes one grammar. `added`: the ids of tokens that are no plain text."""

    shape: Shape
    added: dict[str, int]
    _rules: list[str] = field(default_factory=list)

    def write(
        self,
        tools: Sequence[dict[str, Any]],
        *,
        most_one: bool,
        otherwise: Grammar | None,
        channels: bool,
    ) -> Forced:
        """The grammar; with `channels` thinking is a message before it, and part of it."""
        shape = self.shape
        read = [self._tool(number, tool["function"]) for number, tool in enumerate(tools)]
        calls = "call"
        if shape.between is not None and not most_one:
            calls = f"call ({self._text(shape.between)} call)*"
        start = f"{self._text(shape.opens)} {calls} {self._text(shape.closes)}"
        if otherwise is not None:
            any_object = otherwise.kind == "json_object"
            answer = self._json({"type": "object"} if any_object else parse_schema(otherwise.text))
            lead = self._text("<|channel|>final<|message|>") if channels else ""
            start = f"({start} | {lead} {answer})"
        if channels:
            opens, ends = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
            thought = f"{self._text(opens)} THOUGHT? {self._text(ends)}"
            start = f"({thought})? {start}"
        anyone = " | ".join(f"call_{number}" for number in range(len(tools)))
        lines = [f"start: {start}", f"call: {anyone}", *self._rules]
        grammar = Grammar("lark", "\n".join(lines) + TERMS, whole=channels)
        return Forced(grammar, tuple(read))

    def _tool(self, number: int, function: dict[str, Any]) -> dict[str, Any]:
        """The rule of one tool's calls; the tool as a parser has to read it."""
        shape, name = self.shape, function["name"]
        if not re.fullmatch(shape.names, name):
            raise cannot(f"the tool '{name}'", "its name")
        parameters = function.get("parameters") or {}
        if parameters.get("type", "object") != "object":
            raise cannot(f"the tool '{name}'", "its parameters are no object")
        closed = not parameters or "properties" in parameters
        extra = {"additionalProperties": False, "properties": {}} if closed else {}
        schema = {**extra, **parameters, "type": "object"}
        try:
            check_grammar(Grammar.of_schema(schema))
        except UsageError as error:
            why = f"the parameters of the tool '{name}' cannot be forced: {error.message}"
            raise UsageError(why, hint=error.hint) from error
        read = parameters
        if shape.tags is None:
            arguments = self._json(schema)
        else:
            arguments, read = self._members(schema, schema, shape.tags, f"'{name}'")
        befores = [text.replace("NAME", name) for text in (shape.before, shape.instead) if text]
        before = " | ".join(self._text(text) for text in befores)
        after = self._text(shape.after.replace("NAME", name))
        self._rules.append(f"call_{number}: ({before}) {arguments} {after}")
        return {"type": "function", "function": {**function, "parameters": read}}

    def _members(
        self, schema: dict[str, Any], root: dict[str, Any], tags: Tags, place: str
    ) -> tuple[str, dict[str, Any]]:
        """An object's properties one after another, and its schema for a parser."""
        properties, needed = object_of(schema, place)
        found: list[tuple[str, bool]] = []
        read: dict[str, Any] = {}
        for key, value in properties.items():
            inner = f"the argument '{key:.60}' of {place}"
            if not re.fullmatch(tags.keys, key):
                raise cannot(inner, "its name")
            one = argument_of(value, root, inner)
            read[key] = one.read_as if tags.reads_null is False else {"type": one.type}
            opens, closes = tags.opens.replace("KEY", key), tags.closes.replace("KEY", key)
            written = self._value(one, root, tags, inner, closes)
            found.append((f"{self._text(opens)} {written}", key in needed))
        told = {"type": "object", "properties": read}
        if not tags.between:
            return self._rule(" ".join(a if must else f"({a})?" for a, must in found)), told
        between, options = self._text(tags.between), []
        rules = [(self._rule(text), must) for text, must in found]
        for first, (rule, must) in enumerate(rules):  # the first that is there
            rest = (f"({between} {a})" + ("" if m else "?") for a, m in rules[first + 1 :])
            options.append(" ".join((rule, *rest)))
            if must:
                break
        else:
            options.append('""')
        return self._rule(" | ".join(options)), told

    def _value(
        self, one: Argument, root: dict[str, Any], tags: Tags, place: str, closes: str = ""
    ) -> str:
        """One value as its parser reads it, and what closes it."""
        null = f" | {self._text(f'null{closes}')}" if one.nullable and one.type != "null" else ""
        # Null beside a text that may be any: then only JSON tells them apart.
        if one.type == "string" and tags.quote is not None and (tags.reads_null or not null):
            return f"({self._plain(one, tags, place, closes)}{null})"
        if one.type in ("object", "array") and tags.nested != "json":
            if not tags.nested or one.choices is not None:
                raise cannot(place, f"it is an {one.type}")
            value = self._own(one, root, tags, place)
        else:
            names = ("$defs", "definitions")
            value = self._json({**{n: root[n] for n in names if n in root}, **one.schema})
        return f"({value} {self._text(closes)}{null})"

    def _own(self, one: Argument, root: dict[str, Any], tags: Tags, place: str) -> str:
        """An object or a list in the form of the arguments themselves."""
        if one.type == "object":
            if not one.schema.get("properties"):
                raise cannot(place, "it is an object of any properties")
            return f'"{{" {self._members(one.schema, root, tags, place)[0]} "}}"'
        for word in ("minItems", "maxItems", "uniqueItems"):
            if one.schema.get(word):
                raise cannot(place, f"its schema has '{word}'")
        item = argument_of(one.schema.get("items", {}), root, place)
        value = self._rule(self._value(item, root, tags, place))
        return f'"[" ({value} ({self._text(tags.between)} {value})*)? "]"'

    def _plain(self, one: Argument, tags: Tags, place: str, closes: str) -> str:
        """A string as plain text that its parser gives back as it is, and what closes it."""
        quote = tags.quote or ""
        if one.choices is not None:
            texts = " | ".join(literal(value) for value in checked_choices(one, tags, place))
            return f"{self._text(quote)} ({texts}) {self._text(quote + closes)}"
        # A text is as long as it can be: one token of the lexer with what ends it, if that is text.
        first, _, rest = self._text(quote + closes).partition(" ")
        if first.startswith("<["):
            first, rest = "", f"{first} {rest}"
        body = self._rule(free_text(one, tags), terminal=True)
        name = self._rule(f"{body} {first}", terminal=True) if first else body
        return f"{self._text(quote)} {name} {rest}"

    def _json(self, schema: dict[str, Any]) -> str:
        """A JSON value."""
        guide = schema.get("x-guidance") or {"whitespace_pattern": WHITESPACE}
        return self._rule(f"%json {json.dumps({**schema, 'x-guidance': guide})}")

    def _rule(self, text: str, *, terminal: bool = False) -> str:
        """The name of a rule with this text; equal ones are one."""
        kind = "T" if terminal else "r"
        for line in self._rules:
            name, _, old = line.partition(": ")
            if old == text and name.startswith(kind):
                return name
        name = f"{kind}_{len(self._rules)}"
        self._rules.append(f"{name}: {text or literal('')}")
        return name

    def _text(self, text: str) -> str:
        """A text as a sequence: tokens of their own by id, the rest literally."""
        marks = sorted((mark for mark in self.added if mark and mark in text), key=len)[::-1]
        splitter = "|".join((CODES.pattern[1:-1], *map(re.escape, marks)))
        found = []
        for piece in re.split(f"({splitter})", text):
            if piece == BREAK:
                found.append('"\\n"?')
            elif piece == NUMBER:
                found.append("DIGITS")
            elif piece in self.added:
                found.append(f"<[{self.added[piece]}]>")
            elif piece:
                found.append(literal(piece))
        return " ".join(found) or '""'


def literal(text: str) -> str:
    """A text in Lark."""
    return json.dumps(text, ensure_ascii=False)
