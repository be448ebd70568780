"""Tokenizers of Llama 2, Mistral and Gemma: spaces as "▁", rare characters as byte tokens."""

import json
import random
import re
from typing import Any

import pytest
import tiny
from thinking_cases import pieces_of
from tiny import sentencepiece_tokenizer

from dflash_mlx import Grammar, SamplingParams, api
from dflash_mlx.chat.detokenizer import Detokenizer, token_text
from dflash_mlx.chat.reasoning_parser import IncrementalDetokenizer
from dflash_mlx.constrained.compiler import Compiler
from dflash_mlx.pair import Pair

STRIPS = [True, False]  # as Llama 2, Mistral and Phi-3; as Gemma
TEXTS = [
    "plain words, twice",
    " a space first",
    "    return x\n        more",
    "naïve 漢字 👩‍👩‍👧 ok é",
    "a 👍🏽👍🏽 b\x00c",
    "\n\n  two lines\n",
    " ",
    "   ",
    "\ufffd kept \ufffd",
]


def streamed(tokenizer: Any, tokens: list[int], before: tuple[int, ...] = ()) -> str:
    detokenizer = Detokenizer(tokenizer, before)
    pieces = [detokenizer.add(token) for token in tokens]
    return "".join(pieces) + detokenizer.finish()


@pytest.mark.parametrize("strips", STRIPS)
@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_decoded_text(text: str, strips: bool) -> None:
    tokenizer = sentencepiece_tokenizer(strips)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert streamed(tokenizer, tokens) == tokenizer.decode(tokens) == text
    assert streamed(tokenizer, [*tokens, 2]) == tokenizer.decode([*tokens, 2])


@pytest.mark.parametrize("strips", STRIPS)
def test_any_tokens(strips: bool) -> None:
    """At random, with bytes that are no characters at the end and between words."""
    tokenizer = sentencepiece_tokenizer(strips)
    dice = random.Random(1)
    words = [*range(3), *range(259, len(tokenizer))]
    for _ in range(300):
        tokens: list[int] = []
        for _ in range(dice.randint(1, 6)):
            tokens += dice.choices(words, k=dice.randint(1, 3))
            tokens += [dice.randint(0x80, 0xFF) + 3 for _ in range(dice.choice([0, 0, 1, 2]))]
        bad = [0xF0 + 3, 0x9F + 3, 0x98 + 3][: dice.randint(0, 3)]
        found = streamed(tokenizer, [*tokens, words[-1], *bad])
        assert found == tokenizer.decode([*tokens, words[-1], *bad])


def test_a_whole_character_stays_whole() -> None:
    """It is shown before the invalid byte comes, with which `decode` replaces all its bytes."""
    tokenizer = sentencepiece_tokenizer(False)
    tokens = [*(byte + 3 for byte in "👍".encode()), 0xFF + 3]
    assert tokenizer.decode(tokens) == 5 * "\ufffd"
    assert streamed(tokenizer, tokens) == "👍\ufffd"


@pytest.mark.parametrize("strips", STRIPS)
def test_text_comes_at_once(strips: bool) -> None:
    """Only the bytes of one character are held back, not a run of them, nor a space."""
    tokenizer = sentencepiece_tokenizer(strips)
    detokenizer = Detokenizer(tokenizer)
    tokens = tokenizer.encode("a 👍漢 b", add_special_tokens=False)
    pieces = [detokenizer.add(token) for token in tokens]
    assert [piece for piece in pieces if piece] == ["a", " ", "👍", "漢", " b"]


def test_a_continuation_has_its_space() -> None:
    """ "is" + " Paris": `decode` would drop the space of the answer alone."""
    tokenizer = sentencepiece_tokenizer(True)
    before = tokenizer.encode("it is", add_special_tokens=False)
    answer = tokenizer.encode("Paris", add_special_tokens=False)
    assert streamed(tokenizer, answer) == "Paris"
    assert streamed(tokenizer, answer, tuple(before)) == " Paris"
    assert streamed(tokenizer, answer, (1,)) == " Paris"


def test_text_of_one_token() -> None:
    """The tokens of log-probabilities join to the text that they belong to."""
    tokenizer = sentencepiece_tokenizer(True)
    tokens = tokenizer.encode("it is  so", add_special_tokens=False)
    assert "".join(token_text(tokenizer, token) for token in tokens) == " it is  so"
    assert token_text(tokenizer, 2) == "</s>"


@pytest.mark.parametrize("strips", STRIPS)
@pytest.mark.parametrize(
    ("text", "stops", "answer"),
    [
        ("one 漢字 two", ("字",), "one 漢"),
        ("one 👍 two", ("👍 t",), "one "),
        ("a\n\nb", ("\n\n",), "a"),
        ("so it is", (" it",), "so"),
        ("so it is", ("t i", "none"), "so i"),
        ("so 👍", ("👍👍",), "so 👍"),
    ],
)
def test_stop_strings(text: str, stops: tuple[str, ...], answer: str, strips: bool) -> None:
    """Over the borders of byte tokens, in blocks of any size."""
    tokenizer = sentencepiece_tokenizer(strips)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for size in (1, 2, 3, 100):
        detokenizer = IncrementalDetokenizer(tokenizer, [], stops)
        assert "".join(p.text for p in pieces_of(detokenizer, tokens, [size])) == answer


def pair_of(strips: bool) -> Pair:
    """A random target with such a tokenizer."""
    tokenizer = sentencepiece_tokenizer(strips)
    target = tiny.make_target("qwen3", vocab_size=len(tokenizer), num_hidden_layers=2)
    return tiny.make_pair(tiny.with_ends(target, tokenizer), None, "a", None, tokenizer)


def test_the_first_space_of_an_answer() -> None:
    """An answer begins without it, and the continuation of a text with it."""
    pair = pair_of(True)
    word = pair.tokenizer.convert_tokens_to_ids("▁Paris")
    for raw, text in ((False, "Paris Paris"), (True, " Paris Paris")):
        answer = api.generate(
            pair, "it is", raw=raw, mode="baseline", allowed_token_ids=(word,), max_tokens=2
        )
        assert answer.text == text


GRAMMARS = [" yes", "( it is)+ so", "[é漢👍]{2,4}", "(a|\\n){3}"]
SCHEMA = {
    "type": "object",
    "properties": {"é": {"enum": ["漢 👍", " it", "\n\n"]}, "n": {"type": "boolean"}},
    "required": ["é", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("strips", STRIPS)
def test_answers_of_a_form(strips: bool) -> None:
    """Byte tokens spell what a schema or grammar asks for, and no first space is lost."""
    pair = pair_of(strips)
    for seed in range(3):
        sampling = SamplingParams(temperature=1, seed=seed)

        def ask(sampling: SamplingParams = sampling, **form: Any) -> str:
            form |= {"mode": "baseline", "sampling": sampling}
            answer = api.generate(pair, "so", max_tokens=80, **form)
            assert answer.finish_reason == "stop"
            return answer.text

        for regex in GRAMMARS:
            assert re.fullmatch(regex, ask(grammar=Grammar("regex", regex)))
        assert {*json.loads(ask(schema=SCHEMA))} == {"é", "n"}


@pytest.mark.slow
def test_a_large_vocabulary() -> None:
    """262,144 tokens, as Gemma's, with ids that the model has beyond them."""
    tokenizer = sentencepiece_tokenizer(False, 262_144)
    assert len(tokenizer) == 262_144
    tokens = [262_143, 262_142, *(byte + 3 for byte in "👍".encode()), 262_143]
    assert streamed(tokenizer, tokens) == tokenizer.decode(tokens) == " w262143 w262142👍 w262143"
    assert streamed(tokenizer, [262_143, 270_000, 262_142]) == " w262143 w262142"
    compiler = Compiler(tokenizer, 262_208, frozenset({2}))  # the model's table is padded
    matcher = compiler.compile(Grammar("regex", "( w262143 ?👍)+"))
    assert matcher.deep_copy().try_consume_tokens([*tokens[:1], *tokens[2:6], tokens[-1]]) == 6
