"""Calls of every format, in random pieces: the same objects and the same text, or none of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from call_families import TEXT, parser_of, tokenizer_of, tool

from dflash_mlx.chat.reasoning_parser import TagReasoningParser
from dflash_mlx.chat.tool_parser import LONGEST_PIECE, call_finder

SEED = 20260917
COUNTS = [400, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
KEYS = ("path", "text", "more")
TOOLS = [tool(name, dict.fromkeys(KEYS, TEXT)) for name in ("write", "edit")]
Values = dict[str, str]


@dataclass(frozen=True)
class Form:
    """How a family writes a call. whole: for NAME and ARGUMENTS; argument: for KEY and VALUE."""

    whole: str
    argument: str = ""
    tags: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    argument_end: str = ""


ARROWS = ("<tool_call>", "</tool_call>")
FORMS = {
    "json_tools": Form('{"name": "NAME", "arguments": ARGUMENTS}\n', "", ARROWS, *ARROWS),
    "mistral": Form("NAME[ARGS]ARGUMENTS", "", ("[TOOL_CALLS]", "[ARGS]"), "[TOOL_CALLS]"),
    "kimi_k2": Form(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
        "",
        ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "qwen3_coder": Form(
        "\n<function=NAME>\nARGUMENTS</function>\n",
        "<parameter=KEY>\nVALUE\n</parameter>\n",
        ("</parameter>", "</function>", "`<parameter=text>`", "<function=write>", *ARROWS),
        *ARROWS,
        "</parameter>\n",
    ),
    "glm47": Form(
        "NAME\nARGUMENTS",
        "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        ("</arg_value>", "</arg_key>", "<arg_value>", *ARROWS),
        *ARROWS,
        "</arg_value>\n",
    ),
    "minimax_m2": Form(
        '\n<invoke name="NAME">\nARGUMENTS</invoke>\n',
        '<parameter name="KEY">VALUE</parameter>\n',
        ("</parameter>", "</invoke>", "</minimax:tool_call>", "<minimax:tool_call>"),
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "</parameter>\n",
    ),
    "minicpm5": Form(
        '"NAME">ARGUMENTS',
        '<param name="KEY">VALUE</param>',
        ("</param>", "</function>", "<function>"),
        "<function name=",
        "</function>",
        "</param>",
    ),
    "muse_spark": Form(
        '<atem:invoke name="NAME">ARGUMENTS</atem:invoke>',
        '<atem:parameter name="KEY">VALUE</atem:parameter>',
        ("</atem:parameter>", "</atem:invoke>", "</atem:function_calls>"),
        "<atem:function_calls>",
        "</atem:function_calls>",
        "</atem:parameter>",
    ),
    "kimi_k3": Form(
        '<|open|>call tool="NAME" index="0"<|sep|>ARGUMENTS<|close|>call<|sep|>',
        '<|open|>argument key="KEY" type="string"<|sep|>VALUE<|close|>argument<|sep|>',
        ("<|close|>argument<|sep|>", "<|close|>call<|sep|>", "<|close|>tools<|sep|>"),
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        "<|close|>argument<|sep|>",
    ),
    "gemma4": Form(
        "call:NAME{ARGUMENTS}",
        'KEY:<|"|>VALUE<|"|>,',
        ("<tool_call|>", "<|tool_call>"),
        "<|tool_call>",
        "<tool_call|>",
    ),
    "function_gemma": Form(
        "call:NAME{ARGUMENTS}",
        "KEY:<escape>VALUE<escape>,",
        ("<end_function_call>", "<start_function_call>"),
        "<start_function_call>",
        "<end_function_call>",
    ),
    "pythonic": Form(
        "[NAME(ARGUMENTS)]",
        "KEY=VALUE, ",
        ("<|tool_call_end|>", "<|tool_call_start|>", ")]"),
        "<|tool_call_start|>",
        "<|tool_call_end|>",
    ),
}
TAGGED = [family for family, form in FORMS.items() if form.argument_end]
BARE = ("qwen3_coder", "minimax_m2", "muse_spark", "glm47")
IN_THINKING = ("json_tools", "qwen3_coder", "glm47", "minimax_m2", "muse_spark", "kimi_k2")
WORDS = (
    "a", "line 1\nline 2", '"', "'", "\\", "\\d+", "C:\\temp", "\\n", "{", "}", "[1, 2]",
    '{"a": "b', "é", "漢字", "🙂", "\u2028", "\t", "<", ">", "</", "&lt;", "```", "<think>", "=",
)  # fmt: skip


def value_of(random: Random, form: Form) -> str:
    """Words and tags, each tag with a word after it; neither end is a blank."""
    parts = ["x"]
    for _ in range(random.randrange(6)):
        parts.append(random.choice((" ", "\n", "")))
        parts.append(random.choice((*WORDS, *form.tags)))
        parts.append(random.choice((".", " is", "\nand", "'s")))
    return "".join(parts)


def written(form: Form, name: str, values: Values, family: str) -> str:
    """A call without the tags around it."""
    if not form.argument:
        return form.whole.replace("NAME", name).replace("ARGUMENTS", json.dumps(values))
    quote = repr if family == "pythonic" else str
    arguments = [
        form.argument.replace("KEY", key).replace("VALUE", quote(value))
        for key, value in values.items()
    ]
    text = "".join(arguments)
    text = text if form.argument_end else text.rstrip(", ")
    return form.whole.replace("NAME", name).replace("ARGUMENTS", text)


def pieces_of(random: Random, text: str) -> list[str]:
    longest = random.choice((1, 3, 20, len(text) or 1))
    pieces = []
    while text:
        size = random.randint(1, longest)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


Read = tuple[str, list[tuple[str, Any]], list[str]]


def read(family: str, pieces: Sequence[str], *, cut: bool = False) -> Read:
    """The text of an answer, its calls, and what came of the arguments of one that was cut."""
    parser = parser_of(family, TOOLS)
    text, calls, begun = "", [], []
    for number in range(len(pieces) + 1):
        piece = "".join(pieces[number : number + 1])
        found = parser.feed(piece, final=number == len(pieces), cut=cut)
        text += found.text
        for call in found.calls:
            if call.complete:
                calls.append((call.name, json.loads(call.arguments)))
            else:
                begun.append(call.arguments)
    return text, calls, begun


def some_values(random: Random, form: Form, least: int = 0) -> Values:
    keys = random.sample(KEYS, random.randint(least, len(KEYS)))
    return {key: value_of(random, form) for key in keys}


def nested(random: Random, family: str, form: Form) -> str:
    """A value that shows a whole call, as far as a format can have one."""
    example = written(form, "edit", {"more": value_of(random, form)}, family)
    return f"Example:\n{form.start}{example}{form.end}\nThat is it."


@pytest.mark.parametrize("count", COUNTS)
def test_any_value_comes_whole(count: int) -> None:
    for number in range(count):
        random = Random(f"{SEED} {number}")
        family = random.choice(list(FORMS))
        form = FORMS[family]
        wanted = []
        said = before = random.choice(("", "So: ", "I write.\n\n"))
        for _ in range(random.randint(1, 2)):
            values = some_values(random, form)
            if family in TAGGED and values and random.random() < 0.2:
                values[random.choice(list(values))] = nested(random, family, form)
            name = random.choice(("write", "edit"))
            said += form.start + written(form, name, values, family) + form.end + "\n"
            wanted.append((name, values))
        after = random.choice(("", "\nDone."))
        what = (number, family, said)
        text, calls, begun = read(family, pieces_of(random, said + after))
        assert calls == wanted, what
        assert not begun, what
        assert text.split() == (before + after).split(), what
        cut = said[: random.randrange(len(said))]
        text, calls, begun = read(family, pieces_of(random, cut), cut=True)
        assert calls == wanted[: len(calls)], (what, cut)
        rest = text.strip().removeprefix(before.strip()) if before.strip() in text else ""
        assert len(rest.strip()) <= LONGEST_PIECE, (what, cut, text)
        for arguments in begun:
            whole = json.dumps(wanted[len(calls)][1], ensure_ascii=False)
            assert not form.argument_end or whole.startswith(arguments), (what, cut, arguments)


@pytest.mark.parametrize("count", COUNTS)
def test_tags_that_the_model_leaves_out(count: int) -> None:
    """The end of an argument, the start of the calls, or their end."""
    for number in range(count):
        random = Random(f"{SEED} dropped {number}")
        family = random.choice(TAGGED)
        form = FORMS[family]
        values = {key: random.choice("abc") * 3 for key in random.sample(KEYS, 2)}
        call = written(form, "write", values, family)
        kinds = ["argument", "last argument", "end"]
        kind = random.choice(kinds + ["start"] * 2 * (family in BARE))
        start, end = form.start, form.end
        if kind == "argument":
            call = call.replace(form.argument_end, "\n" * (family == "qwen3_coder"), 1)
        elif kind == "last argument":
            call = "".join(call.rpartition(form.argument_end)[::2])
        elif kind == "end":
            end = ""
        else:
            start = ""
            end = random.choice(("", form.end))
            call = call.lstrip()
        before = random.choice(("So:\n\n", ""))
        said = f"{before}{start}{call}{end}"
        text, calls, begun = read(family, pieces_of(random, said))
        what = (number, family, kind, said, begun)
        assert calls == [("write", values)], what
        assert text.strip() == before.strip(), what


@pytest.mark.parametrize("count", COUNTS)
def test_json_that_is_only_nearly_json(count: int) -> None:
    """It becomes the object that was meant, or stays the text that it was."""
    for number in range(count):
        random = Random(f"{SEED} nearly {number}")
        family = random.choice(("json_tools", "mistral", "kimi_k2"))
        form = FORMS[family]
        values = some_values(random, form, least=1)
        right = json.dumps(values, ensure_ascii=False)
        kind = random.choice(("breaks", "escapes", "comma", "quotes", "brackets", "inner quotes"))
        wrong = right
        if kind == "breaks" and "\\\\n" not in right:
            wrong = right.replace("\\n", "\n")
        elif kind == "escapes":
            wrong = right.replace("\\\\d", "\\d")
        elif kind == "comma":
            wrong = right[:-1] + ",}"
        elif kind == "quotes":
            wrong = repr(values)
        elif kind == "brackets":
            wrong = right[:-1]
        elif kind == "inner quotes":
            wrong = right.replace('\\"', '"')
        said = form.start + form.whole.replace("NAME", "write").replace("ARGUMENTS", wrong)
        said += form.end
        text, calls, begun = read(family, pieces_of(random, said))
        what = (number, family, kind, said, text, calls, begun)
        if kind in ("breaks", "escapes") or calls:
            assert calls == [("write", values)], what
            assert not text.strip(), what
        else:
            assert text.strip() == said.strip() or (begun and not text), what


@pytest.mark.parametrize("count", COUNTS)
def test_calls_in_thinking(count: int) -> None:
    """Thinking that never ends, or that ends after its calls."""
    for number in range(count):
        random = Random(f"{SEED} thinking {number}")
        family = random.choice(IN_THINKING)
        form = FORMS[family]
        values = some_values(random, form, least=1)
        name = random.choice(("write", "edit", "nosuch"))
        call = form.start + written(form, name, values, family) + form.end
        thought = random.choice(("I need it.\n", f"Is {random.choice(form.tags)} right? ", ""))
        end = random.choice(("", "</think>", "\n</think>\n\nDone."))
        said = f"<think>{thought}{call}{end}"
        splitter = TagReasoningParser(
            "<think>", "</think>", find_call=call_finder(tokenizer_of(family), TOOLS)
        )
        thinking = text = ""
        pieces = pieces_of(random, said)
        for piece in pieces:
            found = splitter.feed(0, piece)
            thinking += found[0]
            text += found[1]
        found = splitter.finish("")
        thinking += found[0]
        text += found[1]
        what = (number, family, said, thinking, text)
        text, calls, begun = read(family, pieces_of(random, text))
        assert not begun, what
        after = end.replace("</think>", "").split()
        if name == "nosuch":
            assert not calls, what
            assert thinking == thought + call + "\n" * (end[:1] == "\n"), what
        else:
            assert calls == [(name, values)], what
            assert thinking == thought, what
        assert text.split() == after, what


@pytest.mark.parametrize("count", COUNTS)
def test_any_pieces_give_the_same(count: int) -> None:
    """Of calls from which parts are missing, or that have some twice; arguments are objects."""
    for number in range(count):
        random = Random(f"{SEED} damaged {number}")
        family = random.choice(list(FORMS))
        form = FORMS[family]
        said = "So: "
        for _ in range(2):
            values = some_values(random, form)
            said += form.start + written(form, "write", values, family) + form.end + "\n"
        for _ in range(random.randint(1, 3)):
            begin = random.randrange(len(said))
            end = begin + random.randint(0, 20)
            moved = random.randrange(len(said))
            said = said[:begin] + said[end:][:moved] + said[begin:end] + said[end:][moved:]
            said = said[:begin] + said[end:] if random.random() < 0.5 else said
        cut = random.random() < 0.3
        whole = read(family, [said], cut=cut)
        what = (number, family, said)
        assert all(isinstance(values, dict) for _, values in whole[1]), what
        assert read(family, pieces_of(random, said), cut=cut) == whole, what
