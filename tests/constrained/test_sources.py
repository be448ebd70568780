"""Sources of grammars: schemas of themselves, choices, GBNF, and the blanks in JSON."""

from typing import Any

import pytest
import tiny
from llguidance import LLMatcher, LLTokenizer

from dflash_mlx.constrained.grammar import WHITESPACE, ebnf_grammar, is_complete, llguidance_source
from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar

ITSELF: tuple[dict[str, Any], ...] = (
    {"$ref": "#"},
    {"anyOf": [{"$ref": "#"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
)


@pytest.mark.parametrize("schema", ITSELF)
def test_a_schema_that_is_only_itself(schema: dict[str, Any]) -> None:
    """It compiles, and then no token fits: a fault of the request, not of the server."""
    compiler = tiny.compiler_of(tiny.make_target("qwen3"))
    with pytest.raises(UsageError, match="no text fits it"):
        compiler.compile(Grammar.of_schema(schema))
    compiler.compile(Grammar.of_schema({"properties": {"a": {"$ref": "#"}}, "type": "object"}))


def test_choices() -> None:
    texts = ['a "b"', "c\n", "é\\"]
    grammar = Grammar.of_choices(texts)
    assert all(is_complete(grammar, text) for text in texts)
    assert not is_complete(grammar, "a")
    for none in ([], [""]):
        with pytest.raises(UsageError, match="no text to choose"):
            Grammar.of_choices(none)


def test_grammars_of_llama_cpp_and_of_lark() -> None:
    gbnf = ebnf_grammar('root ::= item ("," item)*\nitem ::= [a-c]+')
    assert is_complete(gbnf, "ab,c")
    assert not is_complete(gbnf, "ab,")
    assert ebnf_grammar('start: "a"') == Grammar("lark", 'start: "a"')
    for wrong in ("", "root", "root ::= (", 'item ::= "a"'):
        with pytest.raises(UsageError):
            ebnf_grammar(wrong)


STARTS = ("", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":[', '{"a":[1', '{"a":[1,')


def longest_run(source: str) -> int:
    """The most blanks that a grammar allows between two marks of JSON."""
    longest = 0
    for start in STARTS:
        for run in (b" " * 200, b"\n" * 200, b"\n" + b" " * 200, b" \n" * 100, b"\t" * 200):
            matcher = LLMatcher(LLTokenizer("byte"), source, log_level=0)
            begun = list(start.encode())
            assert matcher.try_consume_tokens(begun) == len(begun)
            longest = max(longest, matcher.try_consume_tokens(list(run)))
    return longest


def test_runs_of_blanks_in_json_are_bounded() -> None:
    """A model that writes only blanks comes to a mark; without our pattern it need not."""
    grammar = Grammar("json_object")
    assert longest_run(llguidance_source(grammar)) == 17
    free = LLMatcher.grammar_from_json_schema({"type": "object"}, defaults={})
    assert WHITESPACE not in free
    assert longest_run(free) > 100
