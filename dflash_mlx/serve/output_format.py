"""The form of an answer that a body asks for, by any of the fields for it, as a grammar."""

from typing import Any

from dflash_mlx.constrained.grammar import ebnf_grammar
from dflash_mlx.errors import DFlashError
from dflash_mlx.grammar import Grammar

from .body import FormatFields, StructuredOutputs
from .protocol import Problem


def grammar_of(body: FormatFields, response_format: dict[str, Any] | None) -> Grammar | None:
    """None for free text. Raises Problem 400 for a form that is wrong, and for several forms."""
    outputs = body.structured_outputs or StructuredOutputs()
    asked = {
        "response_format": read_response_format(response_format),
        "structured_outputs.json": outputs.json_schema,
        "structured_outputs.json_object": outputs.json_object or None,
        "structured_outputs.regex": outputs.regex,
        "structured_outputs.choice": outputs.choice,
        "structured_outputs.grammar": outputs.grammar,
        "guided_json": body.guided_json,
        "guided_regex": body.guided_regex,
        "guided_choice": body.guided_choice,
        "guided_grammar": body.guided_grammar,
        "json_schema": body.json_schema,
        "grammar": body.grammar or None,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) > 1:
        names = " and ".join(given)
        raise Problem(400, f"{names} contradict each other: give one.", next(iter(given)))
    for name, value in given.items():
        try:
            return grammar_from(name.rpartition(".")[2].removeprefix("guided_"), value)
        except DFlashError as error:
            raise Problem(400, f"{name}: {error.message}", name) from error
    return None


def grammar_from(kind: str, value: Any) -> Grammar:
    """A grammar by the kind of its value, which is that of the field without its prefix."""
    if isinstance(value, Grammar):
        return value
    if kind == "json_object":
        return Grammar("json_object")
    if kind == "regex":
        return Grammar("regex", value)
    if kind == "choice":
        return Grammar.of_choices(value)
    if kind == "grammar":
        return ebnf_grammar(value)
    return Grammar.of_schema(value)


def read_response_format(form: dict[str, Any] | None) -> Grammar | None:
    """The grammar of a response_format; None for free text."""
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object" and form.get("schema") is None:
        return Grammar("json_object")
    # llama-server puts the schema into a json_object, OpenAI into a json_schema.
    holder = form if kind == "json_object" else form.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if kind not in ("json_object", "json_schema") or not isinstance(schema, dict):
        raise Problem(
            400,
            "response_format must be text, json_object, or json_schema with a schema.",
            "response_format",
        )
    try:
        return Grammar.of_schema(schema)
    except DFlashError as error:
        raise Problem(400, f"response_format: {error.message}", "response_format") from error
