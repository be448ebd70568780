"""Grammars in the form of llguidance, and its errors."""

import json
from functools import lru_cache
from typing import Any

from dflash_mlx.errors import UsageError, first_line
from dflash_mlx.grammar import Grammar, parse_schema

# One space, or a line break with its indentation: four levels of four blanks, eight of two or of
# tabs. Without a limit a model may never stop, and with a high one it indents for fun.
WHITESPACE = r" |\n( {0,16}|\t{0,8})"
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
VALUES = ("const", "enum", "default", "examples")


def check_grammar(grammar: Grammar) -> None:
    """Raise as `Compiler.compile`, without a target. Special tokens are not checked."""
    from llguidance import LLMatcher

    source = llguidance_source(grammar)
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(source)
    if is_wrong:
        raise grammar_error(grammar, messages[0])


def llguidance_source(grammar: Grammar) -> str:
    """Raises UsageError for a text that llguidance cannot parse."""
    from llguidance import LLMatcher

    try:
        if grammar.kind == "lark":
            return LLMatcher.grammar_from_lark(grammar.text)
        if grammar.kind == "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        schema = {"type": "object"} if grammar.kind == "json_object" else parse_schema(grammar.text)
        settings = schema.get("x-guidance")
        sets_whitespace = isinstance(settings, dict) and "whitespace_flexible" in settings
        defaults: Any = {} if sets_whitespace else {"whitespace_pattern": WHITESPACE}
        return LLMatcher.grammar_from_json_schema(with_known_formats(schema), defaults=defaults)
    except (ValueError, TypeError, RecursionError) as error:  # half a character, too deep a schema
        raise grammar_error(grammar, first_line(error)) from error


def with_known_formats(schema: Any) -> Any:
    """A schema without the formats that llguidance does not know, which only describe a text."""
    if isinstance(schema, list):
        return [with_known_formats(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    known = {}
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            known[key] = {name: with_known_formats(one) for name, one in value.items()}
        elif key != "format" or not isinstance(value, str) or is_format(value):
            known[key] = value if key in VALUES else with_known_formats(value)
    return known


@lru_cache(maxsize=256)
def is_format(name: str) -> bool:
    from llguidance import LLMatcher

    source = LLMatcher.grammar_from_json_schema({"type": "string", "format": name})
    return not LLMatcher.validate_grammar(source)


def ebnf_grammar(text: str) -> Grammar:
    """The grammar of a text in Lark's dialect, or in llama.cpp's GBNF, which begins with `root`.

    Raises UsageError for a text that is neither.
    """
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return Grammar("lark", any_to_lark(text))
    except Exception as error:  # the converter raises several types, Exception itself among them
        if isinstance(error, UsageError):
            raise
        raise grammar_error(Grammar("lark", text or "-"), first_line(error)) from error


def is_complete(grammar: Grammar, text: str) -> bool:
    """Whether a text is one that the grammar allows, from its first to its last character."""
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), llguidance_source(grammar), log_level=0)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def form_fault(grammar: Grammar, text: str) -> str:
    """Why a text does not follow a grammar, in a few words; empty if it does.

    JSON may have other blanks and another order of properties than our own answers. A schema that
    cannot be judged here is not.
    """
    if is_complete(grammar, text):
        return ""
    if grammar.kind != "json_schema":
        return "it has another form"
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return "it is not JSON"
    return schema_fault(parse_schema(grammar.text), value)


def refuse_constant(name: str) -> None:
    """Raise ValueError: NaN and Infinity are not JSON."""
    raise ValueError(name)


def schema_fault(schema: dict[str, Any], value: Any) -> str:
    """The first place where a value does not fit a schema, and why; empty if it fits."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for
    from referencing import Registry

    try:  # an empty registry asks no machine for a schema
        error = best_match(validator_for(schema)(schema, registry=Registry()).iter_errors(value))
    except Exception:  # a wrong schema raises several types, and the server took it
        return ""
    return "" if error is None else f"{error.json_path}: {error.message}"


def grammar_error(grammar: Grammar, message: str) -> UsageError:
    """The error of a grammar, with llguidance's reason on one line."""
    lines = [line.strip() for line in message.splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = " ".join([lines[0] if lines else "no reason given", *causes[:1]])[:200].rstrip(".")
    if grammar.kind in ("lark", "regex"):
        return UsageError(
            f"the grammar cannot be used ({reason}).", hint="write it in the dialect of llguidance"
        )
    return UsageError(f"the schema cannot be used ({reason}).", hint="change or drop what it names")
