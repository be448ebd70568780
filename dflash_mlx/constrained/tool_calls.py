"""Grammars that force an answer to be tool calls, in the format of the target's family.

Arguments fit their JSON schema and have no properties that it does not name. Qwen3-Coder writes
each argument between tags instead of as JSON. There the arguments come in the order of the schema,
a string is plain text that its parser reads back unchanged, and a schema with several types is
narrowed to one of them. Thinking may come first.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.call_formats import find_call_format
from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar, parse_schema

from .grammar import WHITESPACE, check_grammar, with_known_formats

# Narrowing a tool's parameters to one type each, for arguments between tags

MAX_DEPTH = 16  # of references and unions inside each other
UNSUPPORTED_KEYWORDS = (
    "not",
    "if",
    "dependentSchemas",
    "patternProperties",
    "prefixItems",
    "contains",
)
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


@dataclass(frozen=True, slots=True)
class Argument:
    """A schema of one JSON `type`. choices: the values of an enum; None without one."""

    type: str
    schema: dict[str, Any]
    nullable: bool = False
    choices: tuple[Any, ...] | None = None


def narrow_argument(schema: Any, root: dict[str, Any], label: str, depth: int = 0) -> Argument:
    """A schema narrowed to one type: string if it allows strings, else its first type.

    root: the schema that references are resolved in. label: names the argument in errors.
    Raises UsageError for a schema that cannot be narrowed.
    """
    if depth > MAX_DEPTH:
        raise cannot_force(label, "it refers to itself")
    if schema is True or schema == {}:
        return Argument("string", {"type": "string"})
    if not isinstance(schema, dict):
        raise cannot_force(label, "it has no schema")
    for keyword in UNSUPPORTED_KEYWORDS:
        if keyword in schema:
            raise cannot_force(label, f"its schema has '{keyword}'")
    for keyword in ("$ref", "allOf", "anyOf", "oneOf"):
        if keyword in schema:
            siblings = {name: value for name, value in schema.items() if name != keyword}
            options = [schema[keyword]] if keyword == "$ref" else schema[keyword]
            if not isinstance(options, list) or not options or (keyword == "allOf" and options[1:]):
                raise cannot_force(label, f"its schema has '{keyword}'")
            if keyword == "$ref":
                options = [resolve_reference(schema[keyword], root, label)]
            merged = [
                {**siblings, **option} if isinstance(option, dict) else option for option in options
            ]
            return choose_type([narrow_argument(m, root, label, depth + 1) for m in merged])
    if "const" in schema:
        return enum_argument([schema["const"]])
    if values := schema.get("enum"):
        return enum_argument(values)
    json_type = schema.get("type")
    if json_type == [] or schema.get("enum") == []:
        raise cannot_force(label, "its schema allows nothing")
    if isinstance(json_type, list):
        options = [{**schema, "type": option} for option in json_type]
        return choose_type([narrow_argument(option, root, label, depth + 1) for option in options])
    if json_type is None:
        if "properties" in schema:
            json_type = "object"
        else:
            json_type = "array" if "items" in schema else "string"
    if json_type == "null":
        return Argument("null", {"type": "null"}, nullable=True)
    return Argument(json_type, {**schema, "type": json_type})


def choose_type(options: list[Argument]) -> Argument:
    """The string among several options, else the first; nullable if null is one of them."""
    not_null = [option for option in options if option.type != "null"] or options
    chosen = next((option for option in not_null if option.type == "string"), not_null[0])
    nullable = any(option.nullable for option in options)
    return Argument(chosen.type, chosen.schema, nullable, chosen.choices)


def enum_argument(values: list[Any]) -> Argument:
    """The strings of an enum, or without any the values that have the type of the first one."""
    types = [JSON_TYPES.get(type(value), "null" if value is None else "object") for value in values]
    not_null = [json_type for json_type in types if json_type != "null"]
    if not not_null:
        return Argument("null", {"type": "null"}, nullable=True)
    chosen = "string" if "string" in not_null else not_null[0]
    choices = tuple(
        value for value, json_type in zip(values, types, strict=True) if json_type == chosen
    )
    return Argument(chosen, {"enum": list(choices)}, "null" in types, choices)


def resolve_reference(path: Any, root: dict[str, Any], label: str) -> Any:
    """The schema that a reference like "#/$defs/Unit" names."""
    target: Any = root
    names = str(path).removeprefix("#").strip("/")
    for name in names.split("/") if names else []:
        target = target.get(name.replace("~1", "/")) if isinstance(target, dict) else None
    if not str(path).startswith("#") or target is None:
        raise cannot_force(label, f"'{path!s:.60}' is not in its schema")
    return target


def object_properties(schema: dict[str, Any], label: str) -> tuple[dict[str, Any], list[str]]:
    unions = ("anyOf", "oneOf", "allOf", "$ref", "minProperties", "propertyNames")
    for keyword in (*UNSUPPORTED_KEYWORDS, *unions):
        if keyword in schema:
            raise cannot_force(label, f"its schema has '{keyword}'")
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise cannot_force(label, "its schema is none of an object")
    undeclared = {name: {} for name in required if name not in properties}
    return {**properties, **undeclared}, required


def cannot_force(label: str, why: str) -> UsageError:
    return UsageError(
        f"{label} cannot be forced in this model's form of calls: {why}.",
        hint="use tool_choice auto, or a simpler schema",
    )


# The syntax of each family's calls


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """A family's calls, with `separator` between them.

    before, after: the text around one call's arguments, where NAME is the tool's name.
    alternative_before: another text that may take the place of `before`.
    separator: None if an answer has at most one call.
    tagged: whether each argument is written between tags; else the arguments are one JSON object.
    """

    before: str
    after: str
    separator: str | None = "\n"
    tagged: bool = False
    alternative_before: str = ""


CALL_SYNTAXES = {
    "json_tools": CallSyntax('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>"),
    "qwen3_coder": CallSyntax(
        "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", tagged=True
    ),
    "harmony": CallSyntax(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "",
        separator=None,
        # The chat template writes earlier calls in this form.
        alternative_before=" to=functions.NAME<|channel|>commentary json<|message|>",
    ),
}
# The text around the argument KEY
ARGUMENT_START = "<parameter=KEY>\n"
ARGUMENT_END = "\n</parameter>\n"
KEY_PATTERN = r"[^\s<>\"'=]+"
# Texts that end a value for the parser, so a plain string must not contain them
FORBIDDEN = ("</parameter>", "</function>", "</tool_call>")


# Strings as plain text in a call

BLANK = r"[ \t\r\n]"


def free_text(schema: dict[str, Any]) -> str:
    """A Lark terminal: any text of the schema's length and pattern without forbidden texts.

    A pattern without anchors may match anywhere in the text. `format` is ignored.
    """
    signs = r"([\\|\[\](){}.*+?^$/&~])"
    forbidden = "|".join(re.sub(signs, r"\\\1", text) for text in FORBIDDEN)
    parts = [
        "/(?s:.*)/",
        f"~/(?s:.*)({forbidden})(?s:.*)/",
        f"~/{BLANK}*[nN][uU][lL][lL]{BLANK}*/",
    ]
    limits = []
    min_length = schema.get("minLength")
    max_length = schema.get("maxLength")
    if min_length is not None or max_length is not None:
        limits.append(f"/(?s:.{{{min_length or 0},{'' if max_length is None else max_length}}})/")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        limits.append(lark_pattern(pattern))
    if limits:  # the parser strips blanks, and the stripped text must fit the limits too
        limits.append(f"~/{BLANK}(?s:.*)/ & ~/(?s:.*){BLANK}/")
    return " & ".join(parts + limits)


def lark_pattern(pattern: str) -> str:
    """A JSON schema's pattern, which may match anywhere, as a Lark terminal of the whole text."""
    before = "" if pattern.startswith("^") else "(?s:.*)"
    is_anchored = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern.removeprefix("^")
    if is_anchored:
        inner = inner[:-1]
    inner = re.sub(r"(?<!\\)/", r"\/", inner).replace("\n", r"\n")
    return f"/{before}({inner}){'' if is_anchored else '(?s:.*)'}/"


THINKING = "THINKING: /(?s:.+)/"


@dataclass(frozen=True, slots=True)
class ForcedCalls:
    """tools: with the schemas by which a parser reads the arguments that `grammar` allows."""

    grammar: Grammar
    tools: tuple[dict[str, Any], ...]


def forced_calls(
    tokenizer: TokenizerWrapper,
    tools: Sequence[dict[str, Any]],
    *,
    single_call: bool = False,
    otherwise: Grammar | None = None,
) -> ForcedCalls:
    """The grammar of an answer that calls one of `tools`, or several unless `single_call`.

    tools: in the format of OpenAI's chat API. otherwise: a JSON grammar; an answer without calls
    that fits it is allowed too. Raises UsageError if the calls of this family cannot be forced, or
    if its format cannot express one of the tools.
    """
    call_format = find_call_format(tokenizer)
    name = call_format.name if call_format else "none"
    if name not in CALL_SYNTAXES:
        raise UsageError(
            f"calls cannot be forced in this model's form of them ({name}).",
            hint="use tool_choice auto without a response_format, or a model that writes its calls "
            "as JSON, as Qwen3-Coder or as gpt-oss",
        )
    writer = GrammarWriter(CALL_SYNTAXES[name], tokenizer.get_added_vocab())
    return writer.write(
        tools, single_call=single_call, otherwise=otherwise, channels=name == "harmony"
    )


@dataclass(slots=True)
class GrammarWriter:
    """Writes one grammar. added_tokens: the ids of the tokens that are not plain text."""

    syntax: CallSyntax
    added_tokens: dict[str, int]
    _rules: list[str] = field(default_factory=list)

    def write(
        self,
        tools: Sequence[dict[str, Any]],
        *,
        single_call: bool,
        otherwise: Grammar | None,
        channels: bool,
    ) -> ForcedCalls:
        """The grammar; with `channels` it includes thinking, which is a message of its own."""
        syntax = self.syntax
        parser_tools = [self._tool(index, tool["function"]) for index, tool in enumerate(tools)]
        start = "call"
        if syntax.separator is not None and not single_call:
            start = f"call ({self._text(syntax.separator)} call)*"
        if otherwise is not None:
            any_object = otherwise.kind == "json_object"
            answer = self._json({"type": "object"} if any_object else parse_schema(otherwise.text))
            header = self._text("<|channel|>final<|message|>") if channels else ""
            start = f"({start} | {header} {answer})"
        if channels:
            header = self._text("<|channel|>analysis<|message|>")
            end = self._text("<|end|><|start|>assistant")
            start = f"({header} THINKING? {end})? {start}"
        any_call = " | ".join(f"call_{index}" for index in range(len(tools)))
        lines = [f"start: {start}", f"call: {any_call}", *self._rules, THINKING]
        grammar = Grammar("lark", "\n".join(lines), whole=channels)
        return ForcedCalls(grammar, tuple(parser_tools))

    def _tool(self, index: int, function: dict[str, Any]) -> dict[str, Any]:
        """Write the rule of one tool's calls; returns the tool with the schema for its parser."""
        syntax = self.syntax
        name = function["name"]
        parameters = function.get("parameters") or {}
        if parameters.get("type", "object") != "object":
            raise cannot_force(f"the tool '{name}'", "its parameters are no object")
        closed = not parameters or "properties" in parameters
        extra = {"additionalProperties": False, "properties": {}} if closed else {}
        schema = {**extra, **parameters, "type": "object"}
        try:
            check_grammar(Grammar.of_schema(schema))
        except UsageError as error:
            why = f"the parameters of the tool '{name}' cannot be forced: {error.message}"
            raise UsageError(why, hint=error.hint) from error
        if syntax.tagged:
            arguments, parser_schema = self._properties(schema, f"'{name}'")
        else:
            arguments = self._json(schema)
            parser_schema = parameters
        alternatives = [text for text in (syntax.before, syntax.alternative_before) if text]
        before = " | ".join(self._text(text.replace("NAME", name)) for text in alternatives)
        self._rules.append(f"call_{index}: ({before}) {arguments} {self._text(syntax.after)}")
        return {"type": "function", "function": {**function, "parameters": parser_schema}}

    def _properties(self, schema: dict[str, Any], label: str) -> tuple[str, dict[str, Any]]:
        """The rule of an object's properties in their order, and their schema for the parser."""
        properties, required = object_properties(schema, label)
        rules = []
        parser_properties: dict[str, Any] = {}
        for key, value in properties.items():
            key_label = f"the argument '{key:.60}' of {label}"
            if not re.fullmatch(KEY_PATTERN, key):
                raise cannot_force(key_label, "its name")
            argument = narrow_argument(value, schema, key_label)
            parser_properties[key] = {"type": argument.type}
            opening = self._text(ARGUMENT_START.replace("KEY", key))
            rule = f"{opening} {self._value(argument, schema, key_label)}"
            rules.append(rule if key in required else f"({rule})?")
        return self._rule(" ".join(rules)), {"type": "object", "properties": parser_properties}

    def _value(self, argument: Argument, root: dict[str, Any], label: str) -> str:
        null = ""
        if argument.nullable and argument.type != "null":
            null = f" | {self._text(f'null{ARGUMENT_END}')}"
        if argument.type == "string":
            return f"({self._plain_string(argument, label)}{null})"
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        value = self._json({**definitions, **argument.schema})
        return f"({value} {self._text(ARGUMENT_END)}{null})"

    def _plain_string(self, argument: Argument, label: str) -> str:
        """A string as plain text that its parser reads back unchanged, and what closes it."""
        if argument.choices is not None:
            for value in argument.choices:
                is_lost = value != value.strip() or value.lower() in ("", "null")
                if is_lost or any(text in value for text in FORBIDDEN):
                    raise cannot_force(label, f"the value {value!r:.60}")
            texts = " | ".join(lark_literal(value) for value in argument.choices)
            return f"({texts}) {self._text(ARGUMENT_END)}"
        # The lexer is greedy: the text and what ends it have to be one terminal.
        first, _, rest = self._text(ARGUMENT_END).partition(" ")
        body = self._rule(free_text(argument.schema), terminal=True)
        return f"{self._rule(f'{body} {first}', terminal=True)} {rest}"

    def _json(self, schema: dict[str, Any]) -> str:
        guide = schema.get("x-guidance") or {"whitespace_pattern": WHITESPACE}
        own = {**with_known_formats(schema), "x-guidance": guide}
        return self._rule(f"%json {json.dumps(own)}")

    def _rule(self, text: str, *, terminal: bool = False) -> str:
        """The name of a rule with this text; a rule with the same text is used again."""
        prefix = "T" if terminal else "r"
        for rule in self._rules:
            name, _, rule_text = rule.partition(": ")
            if rule_text == text and name.startswith(prefix):
                return name
        name = f"{prefix}_{len(self._rules)}"
        self._rules.append(f"{name}: {text or lark_literal('')}")
        return name

    def _text(self, text: str) -> str:
        """A text in Lark: added tokens by their ids, the rest literally."""
        contained = [token for token in self.added_tokens if token and token in text]
        pattern = "|".join(map(re.escape, sorted(contained, key=len)[::-1]))
        parts = []
        for part in re.split(f"({pattern})", text) if contained else [text]:
            if part in self.added_tokens:
                parts.append(f"<[{self.added_tokens[part]}]>")
            elif part:
                parts.append(lark_literal(part))
        return " ".join(parts) or '""'


def lark_literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
