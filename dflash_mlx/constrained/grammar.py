"""A grammar as llguidance takes it, and its reasons against one."""

from typing import Any

from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.grammar import Grammar, parse_schema

# One space, or a new line with its indentation: without a bound a model may write spaces for ever.
WHITESPACE = r" |\n[ \t]{0,40}"


def load_llguidance() -> Any:
    """The package; DFlashError where it is missing."""
    try:
        import llguidance
    except ImportError as error:
        raise DFlashError(
            "answers that follow a schema or a grammar need the package 'llguidance'.",
            hint="`uv pip install -e '.[structure]'` in the clone of dflash-chat",
        ) from error
    return llguidance


def check_grammar(grammar: Grammar) -> None:
    """Raise as `Compiler.compile` does, without a target: special tokens are not looked at."""
    source = source_of(grammar)
    wrong, messages = load_llguidance().LLMatcher.validate_grammar_with_warnings(source)
    if wrong:
        raise refused(grammar, messages[0])


def source_of(grammar: Grammar) -> str:
    """A grammar as llguidance takes it; UsageError for a text that it cannot even read."""
    matcher = load_llguidance().LLMatcher
    try:
        if grammar.kind == "lark":
            return matcher.grammar_from_lark(grammar.text)
        if grammar.kind == "regex":
            return matcher.grammar_from_regex(grammar.text)
        schema = {"type": "object"} if grammar.kind == "json_object" else parse_schema(grammar.text)
        own = schema.get("x-guidance")
        spaced = isinstance(own, dict) and "whitespace_flexible" in own
        defaults = {} if spaced else {"whitespace_pattern": WHITESPACE}
        return matcher.grammar_from_json_schema(schema, defaults=defaults)
    except (ValueError, TypeError, RecursionError) as error:  # half a character, too deep a schema
        raise refused(grammar, first_line(error)) from error


def refused(grammar: Grammar, message: str) -> UsageError:
    """The fault of a grammar, with llguidance's reason in one line."""
    lines = [line.strip() for line in message.splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = " ".join([lines[0] if lines else "no reason given", *causes[:1]])[:200].rstrip(".")
    if grammar.kind in ("lark", "regex"):
        return UsageError(
            f"the grammar cannot be used ({reason}).", hint="write it in the dialect of llguidance"
        )
    return UsageError(f"the schema cannot be used ({reason}).", hint="change or drop what it names")
