"""The form of a finished answer: another server's is judged, ours is not deeply indented."""

import json
from collections.abc import Callable
from typing import Any

import openai_server
import pytest
from typer.testing import CliRunner, Result

from dflash_mlx import Grammar
from dflash_mlx.constrained.grammar import is_complete, schema_fault

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
