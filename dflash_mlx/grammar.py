"""The grammar of an answer, as plain text; the package `constrained` enforces it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import UsageError, first_line

Kind = Literal["json_schema", "json_object", "lark", "regex"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of an answer's text after its thinking; of the thinking too, if `whole`.

    kind: "json_schema", whose `text` is the schema as JSON; "json_object", any JSON object, without
    a text; "lark", a grammar in the dialect of llguidance, which begins with its rule `start`;
    "regex", an expression for the whole text. Raises UsageError for another kind, for a text that
    is missing or not wanted, and for a schema that is no JSON object. Other faults show when
    llguidance compiles the grammar.
    """

    kind: Kind
    text: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
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
        """The grammar of a JSON schema (an object or text). Raises UsageError if it is not one."""
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(
                f"the schema is not JSON ({first_line(error)}).", hint="give it as one JSON object"
            ) from None
        return Grammar("json_schema", text)

    @staticmethod
    def of_choices(texts: Sequence[str]) -> "Grammar":
        """The grammar of an answer that is one of these texts. Raises UsageError without any."""
        if not texts or not all(texts):
            raise UsageError("there is no text to choose.", hint="give texts that are not empty")
        return Grammar("lark", "start: " + " | ".join(json.dumps(text) for text in texts))


def parse_schema(text: str) -> dict[str, Any]:
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
    """The grammar of `schema` or of `grammar`; a `grammar` that is a text is in Lark's dialect.

    Raises UsageError if both are given.
    """
    if schema is not None and grammar is not None:
        raise UsageError(
            "an answer follows a schema or a grammar, not both.", hint="leave one of them out"
        )
    if schema is not None:
        return Grammar.of_schema(schema)
    return Grammar("lark", grammar) if isinstance(grammar, str) else grammar
