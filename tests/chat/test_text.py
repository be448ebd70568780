"""From tokens to text: whatever the pieces are, they join to the same text."""

import random

import pytest
import tiny
from mlx_lm.tokenizer_utils import TokenizerWrapper
from thinking_cases import pieces_of

from dflash_mlx.chat.reasoning_parser import IncrementalDetokenizer


def read(
    tokenizer: TokenizerWrapper, text: str, sizes: list[int], stops: tuple[str, ...] = ()
) -> tuple[str, str, bool, list[str]]:
    detokenizer = IncrementalDetokenizer(tokenizer, [], stops)
    pieces = pieces_of(detokenizer, tokenizer.encode(text, add_special_tokens=False), sizes)
    answer = "".join(piece.text for piece in pieces)
    thinking = "".join(piece.thinking for piece in pieces)
    shown = [piece.text + piece.thinking for piece in pieces]
    return answer, thinking, bool(pieces[-1].stop), shown


@pytest.mark.parametrize(
    ("text", "stops", "answer", "thinking", "stopped"),
    [
        ("plain", (), "plain", "", False),
        ("naïve 漢字 👩‍👩‍👧 ok", (), "naïve 漢字 👩‍👩‍👧 ok", "", False),
        ("\n<think>hm</think>\n\nso", (), "\n\nso", "hm", False),
        ("<think>never closed", (), "", "never closed", False),
        ("a <think> later", (), "a <think> later", "", False),
        ("<b>no</b>", (), "<b>no</b>", "", False),
        ("<think>a stop b</think>c stop d", ("stop",), "c ", "a stop b", True),
        ("one END", ("END",), "one ", "", True),
        ("one EN", ("END",), "one EN", "", False),
        ("aab aaab", ("aaab",), "aab ", "", True),
        ("x 字 y", ("字",), "x ", "", True),
    ],
)
def test_pieces_do_not_matter(
    text: str, stops: tuple[str, ...], answer: str, thinking: str, stopped: bool
) -> None:
    """One token at a time, all at once, and at random: the same answer, thinking and end."""
    tokenizer, dice = tiny.byte_tokenizer(), random.Random(1)
    for sizes in ([1], [2], [3], [100], [dice.randint(1, 5) for _ in range(40)]):
        found = read(tokenizer, text, sizes, stops)
        assert found[:3] == (answer, thinking, stopped)
        assert not any("\ufffd" in piece for piece in found[3])


def test_nothing_is_held_without_need() -> None:
    """Text comes out at once unless it may begin a stop string."""
    pieces = read(tiny.byte_tokenizer(), "abc!d<", [1], ("!!",))[3]
    assert pieces == ["a", "b", "c", "", "!d", "<", ""]


def test_incomplete_character_at_the_end() -> None:
    """An answer cut inside a character ends with one replacement sign."""
    tokenizer = tiny.byte_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    tokens = tokenizer.encode("a字")[:3]
    assert detokenizer.add_tokens(tokens).text == "a"
    assert detokenizer.finish().text == "\ufffd"
