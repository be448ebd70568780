"""An answer's items do not hang on where its blocks begin and end."""

import random
from collections.abc import Sequence

import pytest
from mlx_lm.tool_parsers import json_tools, qwen3_coder
from scripted_server import ADD, tool_tokenizer

from dflash_mlx.answer import Answer
from dflash_mlx.chat.tool_parser import make_tool_parser
from dflash_mlx.serve.writer import OutputItem, OutputItems
from dflash_mlx.types import Block

TOLD = [{"type": "function", "function": ADD}]
JSON = '<tool_call>\n{"name": "add", "arguments": {"a":1, "b": "</x>"}}\n</tool_call>'
XML = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
Told = list[tuple[str, str, str]]


def items_of(pieces: Sequence[str], parse: object) -> Told:
    tokenizer = tool_tokenizer()
    tokenizer._tool_parser = parse
    answer, items = Answer(parser=make_tool_parser(tokenizer, TOLD)), OutputItems()
    closed: list[OutputItem] = []
    for number, piece in enumerate(pieces):
        final = number == len(pieces) - 1
        block = Block((1,), text=piece, finish_reason="stop" if final else None)
        for step in items.add(answer.add(block)):
            if step.change == "opened":
                assert step.item.number == len(closed)
            if step.change == "closed":
                closed.append(step.item)
    assert closed == items.all
    return [(item.kind, item.name, item.text) for item in items.all]


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.randrange(len(text)) for _ in range(rng.randrange(8)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


CASES = [
    (json_tools.parse_tool_call, JSON, '{"a":1, "b": "</x>"}'),
    (qwen3_coder.parse_tool_call, XML, '{"a": 1}'),
]


@pytest.mark.parametrize(("parse", "call", "arguments"), CASES, ids=["json", "xml"])
def test_pieces_change_nothing(parse: object, call: str, arguments: str) -> None:
    """Text keeps its place among calls; white space between them is none."""
    rng = random.Random(1)
    made = ("call", "add", arguments)
    for text, found in (
        (
            f"A \n{call}\nB{call}\n{call}\n",
            [("text", "", "A "), made, ("text", "", "\nB"), made, made],
        ),
        (f"\n{call}C", [made, ("text", "", "C")]),
        ("only < text", [("text", "", "only < text")]),
        (
            f"a<b {call} c </tool <tool_call>x</tool_call> d <tool_",
            [
                ("text", "", "a<b "),
                made,
                ("text", "", " c </tool <tool_call>x</tool_call> d <tool_"),
            ],
        ),
        (" \n", [("text", "", " \n")]),
    ):
        for _ in range(150):
            assert items_of(cut(text, rng), parse) == found


def test_calls_before_the_text_of_their_block_stay_before_it() -> None:
    """The line break that is cut from the text is not counted in the places of its calls."""
    tokenizer = tool_tokenizer()
    tokenizer._tool_parser = json_tools.parse_tool_call
    answer, items = Answer(parser=make_tool_parser(tokenizer, TOLD)), OutputItems()
    block = Block((1,), text=f"\n{JSON}C", finish_reason="stop")
    for _ in items.add(answer.add(block)):
        pass
    assert [(item.kind, item.text) for item in items.all] == [
        ("call", '{"a":1, "b": "</x>"}'),
        ("text", "C"),
    ]


def test_a_single_call_ends_the_answer_within_a_block() -> None:
    tokenizer = tool_tokenizer()
    tokenizer._tool_parser = json_tools.parse_tool_call
    answer = Answer(parser=make_tool_parser(tokenizer, TOLD), single_call=True)
    block = answer.add(Block((1,), text=f"A{JSON}B{JSON}C"))
    assert (block.text, len(block.calls), block.finish_reason) == ("A", 1, "calls")
