"""No text of a call shows in an answer that ends inside of one, in the format of every family."""

from collections.abc import Iterator, Sequence

import pytest
from call_families import CALLS, TEXT, parser_of, tokenizer_of, tool

from dflash_mlx.chat.reasoning_parser import IncrementalDetokenizer
from dflash_mlx.chat.tool_parser import ToolCall

TOOLS = [tool(name, {"city": TEXT}) for name in ("weather", "now")]
BEFORE = "Look: "
HEADER = ((), ("", "t", "to", "to="))
# The first of several tokens that start a call may be text.
ONE_TOKEN_STARTS = set(CALLS) - {"kimi_k3", "minicpm5", "muse_spark"}
Calls = list[tuple[str, str]]


def calls_of(calls: Sequence[ToolCall]) -> Calls:
    assert all(call.complete for call in calls[:-1])
    return [(call.name, call.arguments) for call in calls]


def prefixes(family: str) -> Iterator[str]:
    """The text of an answer after each of its tokens, from the first one of its calls on."""
    tokenizer = tokenizer_of(family)
    said = BEFORE + CALLS[family] if family != "harmony" else CALLS[family]
    tokens = tokenizer.encode(said, add_special_tokens=False)
    for count in range(1, len(tokens) + 1):
        detokenizer = IncrementalDetokenizer(tokenizer, [])
        pieces = [detokenizer.add_tokens(tokens[:count]), detokenizer.finish()]
        text = "".join(piece.text for piece in pieces)
        if len(text) > len(BEFORE) or family == "harmony":
            yield text


@pytest.mark.parametrize("family", sorted(ONE_TOKEN_STARTS))
def test_the_length_cuts_a_call(family: str) -> None:
    """The calls before it are there; arguments that came are those of the whole answer."""
    *cut, whole = prefixes(family)
    found = parser_of(family, TOOLS).feed(whole, final=True)
    wanted = calls_of(found.calls)
    assert [name for name, _ in wanted] == ["weather", "now"]
    for text in cut:
        parser = parser_of(family, TOOLS)
        parsed = parser.feed(text, final=True, cut=True)
        assert parsed.text.strip() in (BEFORE.strip(), *HEADER[family == "harmony"]), text
        calls = calls_of(parsed.calls)
        assert calls[: parser.calls_ended] == wanted[: parser.calls_ended], text
        for (name, arguments), whole_call in zip(calls, wanted, strict=False):
            assert name == whole_call[0]
            assert whole_call[1].startswith(arguments), text
        assert parser.ends_in_call or parser.calls_ended, text


@pytest.mark.parametrize("family", sorted(set(CALLS) - {"harmony"}))
def test_a_stop_string_cuts_a_call(family: str) -> None:
    """Wherever it stands, also inside of a tag."""
    said = BEFORE + CALLS[family]
    for place in range(len(BEFORE), len(said)):
        parser = parser_of(family, TOOLS)
        parsed = parser.feed(said[:place], final=True, cut=True, stop=said[place : place + 5])
        assert parsed.text.strip() == BEFORE.strip(), said[:place]


@pytest.mark.parametrize(
    "family", sorted(ONE_TOKEN_STARTS - {"harmony", "mistral", "mistral_list"})
)
def test_the_model_ends_inside_a_call(family: str) -> None:
    """What it wrote after the start tag may be anything: it is no text, and told by name."""
    wanted = calls_of(parser_of(family, TOOLS).feed(CALLS[family], final=True).calls)
    for text in prefixes(family):
        parser = parser_of(family, TOOLS)
        parsed = parser.feed(text, final=True)
        assert parsed.text.strip() == BEFORE.strip(), text
        calls = calls_of(parsed.calls)
        assert calls[: parser.calls_ended] == wanted[: parser.calls_ended]
        assert parser.ends_in_call or parser.calls_ended


def test_text_at_the_end_of_a_cut_answer_stays() -> None:
    """A bracket or the word "to" may start a call, and does not."""
    for family, text in (("json_tools", "if a <"), ("harmony", "I want to"), ("mistral", "a [")):
        for cut, stop in ((False, None), (True, None), (True, "\n")):
            parser = parser_of(family, TOOLS)
            assert parser.feed(text, final=True, cut=cut, stop=stop).text == text
            assert not parser.ends_in_call
