"""A `format` that llguidance does not know only describes a text; others are kept to."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from call_families import FAMILIES, tokenizer_of
from pydantic import UUID4, Base64Str, FilePath, HttpUrl, Json, SecretStr, create_model

from dflash_mlx.constrained.grammar import check_grammar, is_complete, with_known_formats
from dflash_mlx.constrained.tool_calls import forced_calls
from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar

TYPES: Mapping[str, Any] = {
    "Path": Path, "FilePath": FilePath, "SecretStr": SecretStr, "bytes": bytes, "UUID": UUID,
    "UUID4": UUID4, "Base64Str": Base64Str, "HttpUrl": HttpUrl, "IPv4Network": IPv4Network,
    "Pattern": re.Pattern, "Decimal": Decimal, "Json": Json, "list": list[Path],
    "dict": dict[str, Path],
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_types_of_pydantic(kind: Any) -> None:
    check_grammar(Grammar.of_schema(create_model("M", a=(kind, ...)).model_json_schema()))


def of(**schema: Any) -> Grammar:
    return Grammar.of_schema({"type": "string", **schema})


def test_the_other_rules_hold() -> None:
    """Beside an unknown format, and inside of it a known one."""
    assert is_complete(of(format="phone"), '"any text"')
    assert is_complete(of(format="phone", minLength=3), '"12 "')
    assert not is_complete(of(format="phone", minLength=3), '"12"')
    assert is_complete(of(format="date"), '"2026-11-28"')
    assert not is_complete(of(format="date"), '"today"')


def test_only_keywords_are_left_out() -> None:
    """Not properties, values and definitions that have the name."""
    nested = {"type": "string", "format": "phone"}
    plain = {"type": "string"}
    schema = {
        "$defs": {"format": nested, "default": nested},
        "properties": {"format": nested, "enum": nested, "a": {"anyOf": [nested, {"not": nested}]}},
        "const": {"format": "phone"},
        "enum": [{"format": "phone"}],
        "items": nested,
    }
    assert with_known_formats(schema) == {
        **schema,
        "$defs": {"format": plain, "default": plain},
        "properties": {"format": plain, "enum": plain, "a": {"anyOf": [plain, {"not": plain}]}},
        "items": plain,
    }
    assert json.dumps(nested) == '{"type": "string", "format": "phone"}'


@pytest.mark.parametrize("family", FAMILIES)
def test_of_tools(family: str) -> None:
    """In each form of calls that can be forced at all."""
    file = {"type": "string", "format": "path"}
    place = {"type": "object", "properties": {"file": file}}
    parameters = {"type": "object", "properties": {"at": place, "file": file}}
    tools = [
        {"type": "function", "function": {"name": "read", "parameters": one}}
        for one in ({"type": "object"}, parameters)
    ]
    try:
        forced_calls(tokenizer_of(family), tools[:1])
    except UsageError:
        return
    check_grammar(forced_calls(tokenizer_of(family), tools).grammar)


def test_what_cannot_be_kept_to_is_still_refused() -> None:
    with pytest.raises(UsageError, match="uniqueItems"):
        check_grammar(Grammar.of_schema({"type": "array", "uniqueItems": True}))
