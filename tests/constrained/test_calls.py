"""Calls of tools in every family's form: read in any pieces, and forced by a grammar."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from call_families import CALLS, FAMILIES, TEXT, tokenizer_of, tool
from mlx_lm.tokenizer_utils import TokenizerWrapper
from scripted_server import bundled

from dflash_mlx import api
from dflash_mlx.chat.tool_parser import make_tool_parser
from dflash_mlx.constrained.compiler import Compiler
from dflash_mlx.constrained.tool_calls import forced_calls
from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import SamplingParams

Tools = list[dict[str, Any]]


SAY = {"type": "string", "maxLength": 12}
WEATHER = tool("weather", {"city": TEXT}, "city")
NOW = tool("now", {})
FLAT = tool(
    "flat",
    {
        "count": {"type": "integer"},
        "say": {"type": "string", "minLength": 2, "maxLength": 5},
        "unit": {"enum": ["C", "F"]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "on": {"type": "boolean"},
        "code": {"type": "string", "pattern": "^[a-c]+/$"},
    },
    "count",
    "maybe",
)
PLACE = {"type": "object", "properties": {"lat": {"type": "integer"}, "of": TEXT}}
DEEP = tool(
    "deep",
    {
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "at": {"$ref": "#/$defs/Place"},
        "size": {"type": ["integer", "null"]},
    },
    "at",
    **{"$defs": {"Place": {**PLACE, "required": ["lat"], "additionalProperties": False}}},
)


def read(tokenizer: TokenizerWrapper, tools: Tools, pieces: Sequence[str]) -> tuple[str, list[Any]]:
    """The text of an answer, and its calls' names, arguments and pieces of the answer."""
    parser = make_tool_parser(tokenizer, tools)
    assert parser is not None
    text, calls = "", []
    for number, piece in enumerate(pieces):
        said = parser.feed(piece, final=number == len(pieces) - 1)
        text += said.text
        for call in said.calls:
            assert call.complete
            calls.append((call.name, call.arguments, number))
    assert parser.calls_ended == len(calls)
    return text, calls


TOGETHER = {"mistral_list", "pythonic"}


@pytest.mark.parametrize("family", CALLS)
def test_calls_in_any_pieces(family: str) -> None:
    """Text and calls are found however the answer is cut; calls come one by one where they can."""
    tokenizer, said = tokenizer_of(family), f"So: {CALLS[family]}"
    for step in (1, 2, 7, len(said)):
        pieces = [said[n : n + step] for n in range(0, len(said), step)]
        text, calls = read(tokenizer, [WEATHER, NOW], pieces)
        assert text.strip() == "So:"
        assert [(name, json.loads(arguments)) for name, arguments, _ in calls] == [
            ("weather", {"city": 'Br"no'}),
            ("now", {}),
        ]
        if step == 1:
            assert (calls[0][2] == calls[1][2]) == (family in TOGETHER)


@pytest.mark.parametrize("family", ["qwen3_coder", "glm47", "minimax_m2"])
@pytest.mark.parametrize(
    "values",
    [
        {"say": "null and </para", "count": "3"},
        {"say": "\n two\n\nlines ", "on": "true", "maybe": "null"},
        {"code": 'é"\\', "say": "", "unit": "C"},
    ],
)
def test_arguments_are_those_of_the_parser(family: str, values: dict[str, str]) -> None:
    """What is put together of values is what mlx-lm's parser reads in the whole call."""
    before, opens, closes, end = {
        "qwen3_coder": ("<function=flat>", "<parameter=KEY>\n", "\n</parameter>\n", "</function>"),
        "glm47": ("flat", "<arg_key>KEY</arg_key><arg_value>", "</arg_value>", ""),
        "minimax_m2": (
            '<invoke name="flat">', '<parameter name="KEY">', "</parameter>", "</invoke>",
        ),
    }[family]  # fmt: skip
    inside = "".join(opens.replace("KEY", key) + value + closes for key, value in values.items())
    tokenizer, call = tokenizer_of(family), f"{before}\n{inside}{end}"
    parse: Any = tokenizer.tool_parser
    whole = parse(call, [FLAT])
    said = f"{tokenizer.tool_call_start}{call}{tokenizer.tool_call_end}"
    for step in (1, 3, len(said)):
        pieces = [said[n : n + step] for n in range(0, len(said), step)]
        text, ((name, arguments, _),) = read(tokenizer, [FLAT], pieces)
        assert (text, name) == ("", "flat")
        assert arguments == json.dumps(whole["arguments"], ensure_ascii=False)


LITERALS = (
    "\n</parameter>\n", "</parameter>", "null\n</parameter>\n", "null</parameter>",
    '"', "}", '"}', ", ", "]", "null", "<|message|>", "<|end|><|start|>assistant",
)  # fmt: skip
FORCED = {"json_tools", "qwen3_coder", "harmony"}


def walk(tokenizer: TokenizerWrapper, matcher: Any, seed: int) -> str | None:
    """A random answer that a grammar allows; None where it finds no end."""
    rng, matcher, out = random.Random(seed), matcher.deep_copy(), []
    while not matcher.is_stopped() and len(out) < 600:
        if matcher.is_accepting() and rng.random() < 0.6:
            break
        if forced := matcher.compute_ff_tokens():
            matcher.consume_tokens(forced)
            out += forced
            continue
        if rng.random() < 0.6:
            ids = tokenizer.encode(rng.choice(LITERALS), add_special_tokens=False)
            taken = matcher.try_consume_tokens(ids)
            out += ids[:taken]
            if taken:
                continue
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = [int(n) for n in np.flatnonzero(np.unpackbits(bits, bitorder="little"))]
        # No exponents: JSON's 1e999 is no number in Python.
        plain = [
            n for n in allowed if n > 256 or (0 <= n < 94 and tokenizer.decode([n]) not in "eE")
        ]
        token = rng.choice(plain or allowed)
        matcher.consume_token(token)
        out.append(token)
    ended = matcher.is_accepting()
    return tokenizer.decode([n for n in out if n != 256]) if ended else None


@pytest.mark.parametrize("properties", [[1], {"city": True}, None, {"town": TEXT}])
def test_schemas_that_say_nothing(properties: Any) -> None:
    """A call of a tool with a strange schema is read all the same."""
    schema = {"type": "object", "properties": properties}
    strange = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    for family in ("qwen3_coder", "glm47", "minimax_m2"):
        _, ((_, arguments, _), _) = read(tokenizer_of(family), [strange, NOW], [*CALLS[family]])
        assert json.loads(arguments) == {"city": 'Br"no'}


def test_what_is_no_json_is_text() -> None:
    """mlx-lm's parser reads Python's literals, sets among them."""
    said = "<|tool_call_start|>[weather(city={1, 2})]<|tool_call_end|>"
    for pieces in ([said], [*said]):
        assert read(tokenizer_of("pythonic"), [WEATHER, NOW], pieces) == (said, [])


def test_marks_in_json_are_text() -> None:
    """A list of texts may have tags in it, which the parser alone takes for the list's end."""
    tokenizer, value = tokenizer_of("qwen3_coder"), ["</parameter>", "</tool_call>"]
    call = f"<function=deep><parameter=tags>{json.dumps(value)}</parameter></function>"
    said = f"<tool_call>{call}</tool_call>"
    for step in (1, 5, len(said)):
        pieces = [said[n : n + step] for n in range(0, len(said), step)]
        _, ((_, arguments, _),) = read(tokenizer, [DEEP], pieces)
        assert json.loads(arguments) == {"tags": value}


@pytest.mark.parametrize("family", sorted(FORCED))
def test_a_forced_answer_is_calls_that_fit(family: str) -> None:
    """Whatever a model says under the grammar, its parser finds calls whose arguments fit."""
    tools = [FLAT, NOW, DEEP]
    tokenizer = tokenizer_of(family)
    compiler = Compiler(tokenizer, len(tokenizer), frozenset({256}))
    forced = forced_calls(tokenizer, tools)
    matcher = compiler.compile(forced.grammar)
    fits = {
        one["function"]["name"]: compiler.compile(Grammar.of_schema(one["function"]["parameters"]))
        for one in tools
    }
    seen: set[str] = set()
    kinds: set[type] = set()  # of values that may be null
    for seed in range(80):
        said = walk(tokenizer, matcher, seed)
        if said is None:
            continue
        said = said[said.rindex("<|channel|>") :] if family == "harmony" else said
        text, calls = read(tokenizer, list(forced.tools), [said])
        assert calls, said
        assert not text.strip(), said
        for name, arguments, _ in calls:
            judge = fits[name].deep_copy()
            written = json.dumps(json.loads(arguments), ensure_ascii=True)
            ids = tokenizer.encode(written, add_special_tokens=False)
            assert judge.try_consume_tokens(ids) == len(ids), (said, written)
            assert judge.is_accepting()
            seen.add(name)
            kinds |= {type(json.loads(written)[key]) for key in {"maybe"} & {*json.loads(written)}}
        if len(seen) == len(tools) and len(kinds) == 2 and seed > 12:
            break
    assert seen == fits.keys()
    assert kinds == {str, type(None)}


def test_forced_calls_are_those_of_plain_decoding() -> None:
    """Drafts and forced tokens change no token, greedily and with a seed, in any mode."""
    pair, parts = bundled(), [tool("note", {"on": {"type": "boolean"}, "say": SAY}, "say"), NOW]
    words: Any = pair.tokenizer
    tokenizer = tokenizer_of("qwen3_coder")
    own = TokenizerWrapper(words._tokenizer, tool_call_start=tokenizer.tool_call_start,
                           tool_call_end=tokenizer.tool_call_end,
                           tool_parser=tokenizer.tool_parser)  # fmt: skip
    grammar = forced_calls(own, parts, single_call=True).grammar
    for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=5)):
        said = {
            mode: api.generate(
                pair, "Write a note.", grammar=grammar, mode=mode, max_tokens=160, sampling=sampling
            ).text
            for mode in ("baseline", "dflash", "ddtree")
        }
        assert len(set(said.values())) == 1
        text, ((name, _, _),) = read(own, parts, [said["baseline"]])
        assert (text.strip(), name in ("note", "now")) == ("", True)


@pytest.mark.parametrize(
    ("family", "one", "named"),
    [
        ("laguna", WEATHER, "(glm47)"),
        *(
            (name, WEATHER, f"({name.removesuffix('_list')})")
            for name in FAMILIES
            if name not in {*FORCED, "laguna"}
        ),
        ("qwen3_coder", tool("f", {"x": {"allOf": [TEXT, {"minLength": 2}]}}), "'x' of 'f'"),
        ("qwen3_coder", tool("f", {"x y": TEXT}), "'x y' of 'f'"),
        ("json_tools", tool("f", {"x": {"type": "strange"}}), "'f'"),
        ("qwen3_coder", tool("f", {"x": {"enum": ["</function>"]}}), "'x' of 'f'"),
    ],
)
def test_what_cannot_be_forced_is_named(family: str, one: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match="cannot be forced") as error:
        forced_calls(tokenizer_of(family), [one])
    assert named in str(error.value)
