"""The form of a finished answer: another server's is judged, ours is not deeply indented."""

import json
from collections.abc import Callable
from typing import Any

import openai_server
import pytest
from scripted_server import HI, pair_saying
from typer.testing import CliRunner, Result

from dflash_mlx import Grammar, api
from dflash_mlx.constrained.compiler import Compiler
from dflash_mlx.constrained.grammar import is_complete, schema_fault
from dflash_mlx.constrained.shortest import fewest_tokens, required_text

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "note": {"type": "string"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FITS = '{"name": "Ann", "age": 5}'
NESTED = {
    "$defs": {"Kind": {"enum": ["red", "reddish"]}},
    "type": "array",
    "minItems": 2,
    "items": {
        "type": "object",
        "properties": {"kind": {"$ref": "#/$defs/Kind"}, "none": {"type": "null"}},
        "required": ["kind", "none"],
    },
}
NESTED_TEXT = '[{"kind":"red","none":null},\n  {"kind": "reddish", "none": null}]'


# Answers of other servers


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("import json\nprint({'name': 'Ann'})", "it is not JSON"),
        (f"```json\n{FITS}\n```", "it is not JSON"),
        ('{"name": "Ann"}', "'age' is a required property"),
        ('{"name": "Ann", "age": "5"}', "$.age: '5' is not of type 'integer'"),
        ('{"name": "Ann", "age": NaN}', "it is not JSON"),
        ("", "it is not JSON"),
        (FITS, ""),
        ('{\n        "age": 5,\n        "name": "Ann"\n}\n', ""),  # other order, other blanks
    ],
)
def test_a_server_that_ignores_the_schema(
    cli_app: Any, says: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Guards scripts: what is not the form is printed, but with exit code 1 and a sentence."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with openai_server.openai_server(kind="someone", says=says or " ") as fake:
        words = ("generate", "-m", fake.url, "--schema", json.dumps(PERSON), "who?")
        result = CliRunner().invoke(cli_app, [*words])
    assert result.stdout.strip() == says.strip()
    if not why:
        assert (result.exit_code, "Error" in result.stderr) == (0, False), result.stderr
        return
    assert result.exit_code == 1
    assert f"Error: the answer does not follow its schema or grammar ({why}" in (
        result.stderr.replace("$: ", "")
    )
    assert "may not know response_format" in result.stderr


def test_schemas_that_cannot_be_judged() -> None:
    """The server took them, so its JSON is taken; no machine is asked for a part of them."""
    for schema in (
        {"type": "objct"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"type": "string", "pattern": "("},
    ):
        assert schema_fault(schema, "a") == ""


def test_a_stop_string_ends_a_form_early(dflash: Callable[..., Result]) -> None:
    """An answer of ours that is no longer JSON is an error, too."""
    start = ("--raw", "hi<think></think>", "--max-tokens", "60", "--stop", '"')
    result = dflash("--schema", '{"type": "string", "maxLength": 5}', *start)
    assert result.exit_code == 1
    assert "does not follow its schema or grammar (it is not JSON)" in result.stderr
    assert "--stop may have ended it early" in result.stderr


# Indentation


@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
def test_usual_indentation(indent: str) -> None:
    """Four levels of four blanks, and eight of two or of tabs."""
    depth = 16 // len(indent.expandtabs(2))
    value: Any = 1
    for _ in range(depth):
        value = [value]
    grammar = Grammar.of_schema({"type": "array"})
    assert is_complete(grammar, json.dumps(value, indent=indent))


def test_a_target_that_only_wants_blanks() -> None:
    """40 blanks were possible at each place, and a target at a loss takes them all."""
    pair = pair_saying("\n\n" + " " * 90, HI, strict=False)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    text = api.generate(pair, HI, schema=schema, max_tokens=90).text
    assert json.loads(text)
    assert "\n" + " " * 16 + '"a"' in text
    assert " " * 17 not in text


# Limits that no answer can keep


@pytest.mark.parametrize(
    ("schema", "text", "required"),
    [
        (PERSON, FITS, '{"name":"","age":}'),
        (NESTED, NESTED_TEXT, '[{"kind":"red","none":null},{"kind":"red","none":null}]'),
        ({"type": "string"}, '"a"', '""'),
        ({"const": "yes, yes"}, '"yes, yes"', '"yes, yes"'),
        ({"enum": ["a", 1]}, "1", ""),
        ({"type": "integer"}, "5", ""),
        ({"anyOf": [PERSON, {"type": "null"}]}, "null", ""),
        ({"properties": {"a": {}}, "required": ["a"]}, "1", ""),
        ({"type": ["object", "null"], "required": ["a"]}, "null", ""),
        ({"$ref": "#"}, "", ""),
        ({"type": "object", "properties": {'a"b': {}}, "required": ["c", 'a"b']},
         '{"a\\"b": 1, "c": 2}', '{"a\\"b":}'),
        ({"type": "array", "minItems": 10**9, "items": {"type": "null"}}, "", None),
    ],
)  # fmt: skip
def test_required_text(schema: dict[str, Any], text: str, required: str | None) -> None:
    """It is in every answer, in this order; what is not certain is left out."""
    grammar = Grammar.of_schema(schema)
    found = required_text(grammar).decode()
    assert required is None or found == required
    assert len(found) < 10_000
    if text:
        assert is_complete(grammar, text)
        rest = iter(text)
        assert all(character in rest for character in found)


@pytest.mark.parametrize("text", [FITS, '{"name":"","age":0}', '{"name":"name","age":1}'])
def test_no_valid_answer_is_shorter(text: str) -> None:
    """The bound holds for every way to cut a valid answer into tokens."""
    pair = pair_saying("x", HI)
    compiler: Compiler = pair.compiler
    grammar = Grammar.of_schema(PERSON)
    words = ["name", '{"', '":"', '","', '":', "age", "}", "0"]
    vocabulary = [word.encode() for word in [*words, *map(chr, range(32, 127))]]
    assert fewest_tokens(required_text(grammar), vocabulary, 99) == 7
    assert fewest_tokens(required_text(grammar), vocabulary, 3) == 4
    assert fewest_tokens(b"\xff", vocabulary, 3) == 4  # no token has it
    tokens = len(pair.encode(text))
    assert compiler.allows_length(grammar, tokens)
    assert not compiler.allows_length(grammar, 17)  # bytes: {"name":"","age":}
    assert compiler.allows_length(grammar, 18)
    forced = Grammar("regex", "Answer: (yes|no)")
    assert [compiler.allows_length(forced, most) for most in (7, 8)] == [False, True]


def test_a_limit_that_is_too_small_is_refused(dflash: Callable[..., Result]) -> None:
    """Before, the answer was made, and was cut."""
    start = ("--raw", "hi<think></think>", "--schema", json.dumps(PERSON))
    result = dflash(*start, "--max-tokens", "4")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--max-tokens 4 is too small: no answer that follows the schema" in result.stderr
    result = dflash(*start, "--max-tokens", "40")
    assert result.exit_code != 2
    assert result.stdout
