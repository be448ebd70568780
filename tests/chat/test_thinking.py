"""Thinking and text of answers, however their tokens are cut into blocks; stop strings."""

import random
from collections.abc import Sequence

import pytest
import templates
import tiny
from thinking_cases import CASES, HARMONY, pieces_of

from dflash_mlx.chat.reasoning_parser import LONGEST_HEADER, IncrementalDetokenizer, end_of_turn_ids


def read(
    family: str, prompt: str, answer: Sequence[int], sizes: Sequence[int], stops: Sequence[str] = ()
) -> tuple[str, str]:
    tokenizer = templates.tokenizer_of(family)
    detokenizer = IncrementalDetokenizer(tokenizer, tokenizer.encode(prompt), stops)
    return read_with(detokenizer, answer, sizes)


def read_with(
    detokenizer: IncrementalDetokenizer, answer: Sequence[int], sizes: Sequence[int]
) -> tuple[str, str]:
    pieces = pieces_of(detokenizer, answer, sizes)
    assert not any("\ufffd" in piece.text + piece.thinking for piece in pieces)
    return "".join(p.text for p in pieces), "".join(p.thinking for p in pieces)


@pytest.mark.parametrize(("family", "prompt", "answer", "text", "thinking"), CASES)
def test_every_familys_answers(
    family: str, prompt: str, answer: str, text: str, thinking: str
) -> None:
    """One token at a time, all at once, and at random: no mark shows, nothing is lost."""
    tokens = templates.tokenizer_of(family).encode(answer, add_special_tokens=False)
    dice = random.Random(1)
    for sizes in ([1], [2], [3], [1000], [dice.randint(1, 9) for _ in range(40)]):
        assert read(family, prompt, tokens, sizes) == (text, thinking)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>yes", ("yes", "hm")),
        ("<|open|>response<|sep|>yes<|close|>response<|sep|><|close|>message<|sep|>", ("yes", "")),
        ("<|open|>response<|sep|>yes<|close|>resp", ("yes", "")),
        ("<|open|>thi", ("", "")),
        ("a <", ("a <", "")),
    ],
)
def test_tags_around_the_answer_of_kimi_k3(answer: str, wanted: tuple[str, str]) -> None:
    """Its text has tags, too: <|open|>response<|sep|> showed in the answer."""
    marks = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
    tokenizer = tiny.byte_tokenizer("<|stop|>", marks)
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    for size in (1, 2, 3, 100):
        detokenizer = IncrementalDetokenizer(tokenizer, tokenizer.encode("[a]"))
        assert read_with(detokenizer, tokens, [size]) == wanted


def test_text_that_looks_like_a_mark() -> None:
    """Marks are tokens: an answer that writes of them in letters is not cut up."""
    tokenizer = templates.tokenizer_of("gpt_oss")
    letters = [n for c in "say <|end|><|start|>" for n in tokenizer.encode(c)]
    tokens = [*tokenizer.encode(HARMONY), *letters]
    assert tokenizer.encode("<|end|>") != tokenizer.encode("<") + tokenizer.encode("|end|>")
    assert read("gpt_oss", "<|start|>assistant", tokens, [4])[0] == "say <|end|><|start|>"


def test_stop_strings_are_looked_for_in_the_text_only() -> None:
    """Neither in what is thought nor in a header."""
    tokens = templates.tokenizer_of("gpt_oss").encode(HARMONY + "one hm two")
    for size in (1, 3, 100):
        found = read("gpt_oss", "<|start|>assistant", tokens, [size], ("hm", "final"))
        assert found == ("one ", "hm ")


def test_a_header_without_an_end() -> None:
    """What a model writes that does not keep to its form is shown as it comes, not kept back."""
    tokenizer = templates.tokenizer_of("gpt_oss")
    detokenizer = IncrementalDetokenizer(tokenizer, tokenizer.encode("<|start|>assistant"))
    shown = "".join(
        detokenizer.add_tokens(tokenizer.encode("x" * LONGEST_HEADER)).text for _ in range(3)
    )
    assert shown == "x" * 3 * LONGEST_HEADER


def test_marks_in_the_question() -> None:
    """The opening decides, which is all that a session hands on: see test_session."""
    tokens = templates.tokenizer_of("qwen").encode("yes")
    assert read("qwen", "what is <think>?[a]\n", tokens, [1]) == ("", "yes")
    assert read("qwen", "[a]\n", tokens, [1]) == ("yes", "")


def test_ends_of_a_turn() -> None:
    """The marks that end an answer do so whatever the files say; the end of a message does not."""
    for family, marks in (("gpt_oss", ("<|return|>", "<|call|>")), ("muse", ("<|eot|>",))):
        tokenizer = templates.tokenizer_of(family)
        assert end_of_turn_ids(tokenizer) == set(tokenizer.convert_tokens_to_ids(list(marks)))
    assert end_of_turn_ids(templates.tokenizer_of("qwen")) == frozenset()
    assert end_of_turn_ids(tiny.tokenizer()) == frozenset()


# Text and stop strings


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
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for sizes in ([1], [2], [3], [100], [dice.randint(1, 5) for _ in range(40)]):
        pieces = pieces_of(IncrementalDetokenizer(tokenizer, [], stops), tokens, sizes)
        assert not any("\ufffd" in piece.text + piece.thinking for piece in pieces)
        assert "".join(piece.text for piece in pieces) == answer
        assert "".join(piece.thinking for piece in pieces) == thinking
        assert bool(pieces[-1].stop) == stopped


def test_nothing_is_held_without_need() -> None:
    """Text comes out at once unless it may begin a stop string."""
    tokenizer = tiny.byte_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, [], ("!!",))
    pieces = pieces_of(detokenizer, tokenizer.encode("abc!d<"), [1])
    assert [piece.text for piece in pieces] == ["a", "b", "c", "", "!d", "<", ""]


def test_incomplete_character_at_the_end() -> None:
    """An answer cut inside a character ends with one replacement sign."""
    tokenizer = tiny.byte_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    tokens = tokenizer.encode("a字")[:3]
    assert detokenizer.add_tokens(tokens).text == "a"
    assert detokenizer.finish().text == "\ufffd"
