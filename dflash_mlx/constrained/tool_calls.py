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

from dflash_mlx.chat.tool_parser import call_format
from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar, parse_schema

from .grammar import WHITESPACE, check_grammar

# The arguments of a tool as schemas of one type each, for formats that cannot say "any of
# these".

DEEPEST = 16
NEITHER = ("not", "if", "dependentSchemas", "patternProperties", "prefixItems", "contains")
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: a schema with one `type`, and whether null may stand in its place.

    choices: the only values, where they are listed.
    """

    type: str
    schema: dict[str, Any]
    nullable: bool = False
    choices: tuple[Any, ...] | None = None

    @property
    def read_as(self) -> dict[str, Any]:
        """The schema by which a parser finds the value in its text."""
        return {"type": [self.type, "null"] if self.nullable else self.type}


def argument_of(schema: Any, root: dict[str, Any], place: str, depth: int = 0) -> Argument:
    """A schema narrowed to one type: text where that is among several, else the first.

    `root` has what the schema refers to. UsageError names `place` where it cannot be narrowed.
    """
    if depth > DEEPEST:
        raise cannot(place, "it refers to itself")
    if schema is True or schema == {}:
        return Argument("string", {"type": "string"})
    if not isinstance(schema, dict):
        raise cannot(place, "it has no schema")
    for word in NEITHER:
        if word in schema:
            raise cannot(place, f"its schema has '{word}'")
    for word in ("$ref", "allOf", "anyOf", "oneOf"):
        if word in schema:
            rest = {name: value for name, value in schema.items() if name != word}
            options = [schema[word]] if word == "$ref" else schema[word]
            if not isinstance(options, list) or not options or (word == "allOf" and options[1:]):
                raise cannot(place, f"its schema has '{word}'")
            if word == "$ref":
                options = [resolved(schema[word], root, place)]
            found = [argument_of({**rest, **one} if isinstance(one, dict) else one,
                                 root, place, depth + 1) for one in options]  # fmt: skip
            return one_of(found)
    if "const" in schema:
        return listed([schema["const"]], place)
    if values := schema.get("enum"):
        return listed(values, place)
    kind = schema.get("type")
    if kind == [] or schema.get("enum") == []:
        raise cannot(place, "its schema allows nothing")
    if isinstance(kind, list):
        return one_of(
            [argument_of({**schema, "type": one}, root, place, depth + 1) for one in kind]
        )
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind == "null":
        return Argument("null", {"type": "null"}, nullable=True)
    return Argument(kind, {**schema, "type": kind})


def one_of(found: list[Argument]) -> Argument:
    """The one of several that is kept; null stays beside it."""
    kept = [one for one in found if one.type != "null"] or found
    best = next((one for one in kept if one.type == "string"), kept[0])
    nullable = any(one.nullable for one in found)
    return Argument(best.type, best.schema, nullable, best.choices)


def listed(values: list[Any], place: str) -> Argument:
    """One of some values: of the texts where there are any, else of the first one's type."""
    kinds = [TYPES.get(type(value), "null" if value is None else "object") for value in values]
    others = [kind for kind in kinds if kind != "null"]
    if not others:
        return Argument("null", {"type": "null"}, nullable=True)
    kind = "string" if "string" in others else others[0]
    kept = tuple(value for value, own in zip(values, kinds, strict=True) if own == kind)
    return Argument(kind, {"enum": list(kept)}, "null" in kinds, kept)


def resolved(path: Any, root: dict[str, Any], place: str) -> Any:
    """What a reference like "#/$defs/Unit" refers to."""
    found: Any = root
    names = str(path).removeprefix("#").strip("/")
    for name in names.split("/") if names else []:
        found = found.get(name.replace("~1", "/")) if isinstance(found, dict) else None
    if not str(path).startswith("#") or found is None:
        raise cannot(place, f"'{path!s:.60}' is not in its schema")
    return found


def object_of(schema: dict[str, Any], place: str) -> tuple[dict[str, Any], list[str]]:
    """An object's properties, and which of them it must have."""
    for word in (*NEITHER, "anyOf", "oneOf", "allOf", "$ref", "minProperties", "propertyNames"):
        if word in schema:
            raise cannot(place, f"its schema has '{word}'")
    properties = schema.get("properties") or {}
    needed = schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(needed, list):
        raise cannot(place, "its schema is none of an object")
    return {**properties, **{name: {} for name in needed if name not in properties}}, needed


def cannot(place: str, why: str) -> UsageError:
    """The error of an argument that a format cannot hold."""
    return UsageError(
        f"{place} cannot be forced in this model's form of calls: {why}.",
        hint="use tool_choice auto, or a simpler schema",
    )


# How each family's calls look when they are forced

BREAK = "\0"  # a line break that may be there
NUMBER = "\1"  # a few digits


@dataclass(frozen=True, slots=True)
class Tags:
    """Arguments that are written one by one, each between `opens` and `closes`.

    quote: stands around a string that is written as plain text; None where strings are JSON. reads_
    null: the bare text null is null. never: what plain text must not have in it, for the parser.
    keys: an expression for arguments' names. nested: "json" where objects and arrays are JSON,
    "own" where they are written as arguments are, "" where the parser cannot read them.
    """

    opens: str
    closes: str
    never: tuple[str, ...] = ()
    quote: str | None = ""
    between: str = ""
    reads_null: bool = True
    nested: str = "json"
    keys: str = r"[^\s<>\"'=]+"


@dataclass(frozen=True, slots=True)
class Shape:
    """A family's calls: `opens`, calls with `between` among them, `closes`.

    before, after: what stands around one call's arguments; `instead` may stand for `before`.
    `between` is None where an answer has one call at most. tags: None where arguments are one JSON
    object. names: an expression for the names of tools.
    """

    before: str
    after: str
    opens: str = ""
    closes: str = ""
    between: str | None = ""
    tags: Tags | None = None
    names: str = ".+"
    instead: str = ""


JSON_CALL = '{"name": "NAME", "arguments": '
GLM = Tags(
    f"<arg_key>KEY</arg_key>{BREAK}<arg_value>",
    f"</arg_value>{BREAK}",
    ("</arg_value>", "</tool_call>"),
    reads_null=False,
)
GLM_CALLS = Shape(f"<tool_call>NAME{BREAK}", "</tool_call>", between=BREAK, tags=GLM)
SHAPES = {
    "json_tools": Shape(f"<tool_call>\n{JSON_CALL}", "}\n</tool_call>", between="\n"),
    "mistral": Shape("[TOOL_CALLS]NAME[ARGS]", "", names=r"[\w\-]+"),
    "mistral_list": Shape(JSON_CALL, "}", "[TOOL_CALLS][", "]", ", "),
    "kimi_k2": Shape(
        f"<|tool_call_begin|>functions.NAME:{NUMBER}<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": Shape(
        f'<|open|>call tool="NAME" index="{NUMBER}"<|sep|><|open|>json type="object"<|sep|>',
        "<|close|>json<|sep|><|close|>call<|sep|>",
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "harmony": Shape(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "",
        between=None,
        instead=" to=functions.NAME<|channel|>commentary json<|message|>",  # as in its template
    ),
    "qwen3_coder": Shape(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        between="\n",
        tags=Tags(
            "<parameter=KEY>\n",
            "\n</parameter>\n",
            ("</parameter>", "</function>", "</tool_call>"),
        ),
    ),
    "glm47": GLM_CALLS,
    "laguna": GLM_CALLS,
    "minimax_m2": Shape(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
        tags=Tags(
            '<parameter name="KEY">',
            "</parameter>\n",
            ("</parameter>", "</invoke>", "</minimax:tool_call>"),
        ),
    ),
    "minicpm5": Shape(
        '<function name="NAME">',
        "</function>",
        between=BREAK,
        tags=Tags(
            '<param name="KEY">', "</param>", ("</param>", "</function>", "<![CDATA["), nested=""
        ),
    ),
    "pythonic": Shape(
        "NAME(",
        ")",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        ", ",
        Tags("KEY=", "", quote=None, between=", ", keys=r"[^\W\d]\w*"),
        names=r"[^\W\d]\w*(\.[^\W\d]\w*)*",
    ),
    "gemma4": Shape(
        "<|tool_call>call:NAME{",
        "}<tool_call|>",
        tags=Tags("KEY:", "", ('<|"|>', "<tool_call|>"), '<|"|>', ",", nested="own", keys=r"\w+"),
        names=r"[\w\-]+",
    ),
    "function_gemma": Shape(
        "<start_function_call>call:NAME{",
        "}<end_function_call>",
        tags=Tags(
            "KEY:",
            "",
            ("<escape>", "}", "<end_function_call>"),
            "<escape>",
            ",",
            nested="",
            keys=r"\w+",
        ),
        names=r"\w+",
    ),
}
CODES = re.compile(f"([{BREAK}{NUMBER}])")


# Strings as plain text in a call

BLANK = r"[ \t\r\n]"


def checked_choices(one: Argument, tags: Tags, place: str) -> tuple[str, ...]:
    """The texts that an argument may be; UsageError where a parser would read another one."""
    for value in one.choices or ():
        lost = not tags.quote and (value != value.strip() or value.lower() in ("", "null"))
        if lost or any(mark in value for mark in tags.never):
            raise cannot(place, f"the value {value!r:.60}")
    return one.choices or ()


def free_text(one: Argument, tags: Tags) -> str:
    """A terminal of Lark: any text of the schema's length and pattern without the format's marks.

    A pattern holds for all of the text from where it has an anchor. `format` is not looked at.
    """
    bare = not tags.quote
    schema = one.schema
    marks = "|".join(escaped(mark) for mark in tags.never)
    parts = ["/(?s:.*)/", f"~/(?s:.*)({marks})(?s:.*)/"]
    if bare and tags.reads_null:
        parts.append(f"~/{BLANK}*[nN][uU][lL][lL]{BLANK}*/")
    least, most, pattern = (schema.get(name) for name in ("minLength", "maxLength", "pattern"))
    if least is not None or most is not None:
        parts.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
    if isinstance(pattern, str):
        lead = "" if pattern.startswith("^") else "(?s:.*)"
        ends = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        inner = pattern.removeprefix("^")
        inner = re.sub(r"(?<!\\)/", r"\/", inner if ends else inner[:-1]).replace("\n", r"\n")
        parts.append(f"/{lead}({inner}){ends}/")
    if bare and parts[3 if tags.reads_null else 2 :]:  # blanks at the ends get lost
        parts.append(f"~/{BLANK}(?s:.*)/ & ~/(?s:.*){BLANK}/")
    return " & ".join(parts)


def escaped(text: str) -> str:
    """A text in an expression of Lark."""
    return re.sub(r"([\\|\[\](){}.*+?^$/&~])", r"\\\1", text)


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
    single_call: bool = False,
    otherwise: Grammar | None = None,
) -> Forced:
    """What an answer follows that calls one of `tools`, or more of them unless `single_call`.

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
    return writer.write(
        tools, single_call=single_call, otherwise=otherwise, channels=name == "harmony"
    )


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
        single_call: bool,
        otherwise: Grammar | None,
        channels: bool,
    ) -> Forced:
        """The grammar; with `channels` thinking is a message before it, and part of it."""
        shape = self.shape
        read = [self._tool(number, tool["function"]) for number, tool in enumerate(tools)]
        calls = "call"
        if shape.between is not None and not single_call:
            calls = f"call ({self._text(shape.between)} call)*"
        start = f"{self._text(shape.opens)} {calls} {self._text(shape.closes)}"
        if otherwise is not None:
            any_object = otherwise.kind == "json_object"
            answer = self._json({"type": "object"} if any_object else parse_schema(otherwise.text))
            lead = self._text("<|channel|>final<|message|>") if channels else ""
            start = f"({start} | {lead} {answer})"
        if channels:
            opens = "<|channel|>analysis<|message|>"
            ends = "<|end|><|start|>assistant"
            thought = f"{self._text(opens)} THOUGHT? {self._text(ends)}"
            start = f"({thought})? {start}"
        anyone = " | ".join(f"call_{number}" for number in range(len(tools)))
        lines = [f"start: {start}", f"call: {anyone}", *self._rules]
        grammar = Grammar("lark", "\n".join(lines) + TERMS, whole=channels)
        return Forced(grammar, tuple(read))

    def _tool(self, number: int, function: dict[str, Any]) -> dict[str, Any]:
        """The rule of one tool's calls; the tool as a parser has to read it."""
        shape = self.shape
        name = function["name"]
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
            opens = tags.opens.replace("KEY", key)
            closes = tags.closes.replace("KEY", key)
            written = self._value(one, root, tags, inner, closes)
            found.append((f"{self._text(opens)} {written}", key in needed))
        told = {"type": "object", "properties": read}
        if not tags.between:
            return self._rule(" ".join(a if must else f"({a})?" for a, must in found)), told
        between = self._text(tags.between)
        options = []
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
