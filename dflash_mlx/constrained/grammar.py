"""What form an answer must have. Plain text; knows no tokens, no tokenizer and no matcher."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from dflash_mlx.errors import DFlashError, UsageError, first_line

if TYPE_CHECKING:
    pass


Kind = Literal["json_schema", "json_object", "lark", "regex"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of an answer's text, after its thinking; with `whole` that is in the grammar too.

    kind: "json_schema", whose `text` is the schema as JSON; "json_object", any JSON object, without
    a text; "lark", a grammar in the dialect of llguidance, which begins with its rule `start`;
    "regex", an expression for the whole text. Raises UsageError for another kind, and for a schema
    that is no JSON object; llguidance judges the rest when it is compiled.
    """

    kind: Kind
    text: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        """Check what needs no compiler."""
        if self.kind not in KINDS:
            raise UsageError(
                f"there is no kind of grammar '{self.kind}'.", hint=f"use one of {', '.join(KINDS)}"
            )
        if self.kind == "json_object" and self.text:
            raise UsageError("a json_object takes no text.", hint="use the kind json_schema")
        if self.kind in ("lark", "regex") and not self.text.strip():
            raise UsageError("the grammar is empty.", hint="leave it out, or write its rule start")
        if self.kind == "json_schema":
            parse_schema(self.text)

    @staticmethod
    def of_schema(schema: dict[str, Any] | str) -> "Grammar":
        """The grammar of a JSON schema, as an object or as JSON text. UsageError if it is none."""
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(
                f"the schema is not JSON ({first_line(error)}).", hint="give it as one JSON object"
            ) from None
        return Grammar("json_schema", text)


def parse_schema(text: str) -> dict[str, Any]:
    """A schema from its JSON text; UsageError where it is no JSON object."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"the schema is not JSON ({first_line(error)}).", hint="give it as one JSON object"
        ) from None
    if not isinstance(schema, dict):
        raise UsageError(
            f"a schema cannot be {text.strip()!r:.60}.", hint='give an object: {"type": ...}'
        )
    return schema


def asked_grammar(
    schema: dict[str, Any] | str | None, grammar: Grammar | str | None
) -> Grammar | None:
    """The grammar that the arguments of these names ask for; a text is in the dialect of Lark.

    UsageError where both are given.
    """
    if schema is not None and grammar is not None:
        raise UsageError(
            "an answer follows a schema or a grammar, not both.", hint="leave one of them out"
        )
    if schema is not None:
        return Grammar.of_schema(schema)
    return Grammar("lark", grammar) if isinstance(grammar, str) else grammar


# A grammar as llguidance takes it, and its reasons against one.

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
