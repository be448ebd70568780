"""Byte tokenizers with the tool-call format of each family, and example calls."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import tiny
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from templates import HARMONY_MARKS

from dflash_mlx.chat.tool_parser import ToolParser, make_tool_parser

ARROWS = ("<tool_call>", "</tool_call>")
# Tool-call tags that are single tokens.
FAMILIES: dict[str, tuple[str, ...]] = {
    "json_tools": ARROWS,
    "qwen3_coder": ARROWS,
    "glm47": (*ARROWS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "laguna": ARROWS,
    "minimax_m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "minicpm5": (),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "mistral_list": ("[TOOL_CALLS]",),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    "kimi_k3": ("<|open|>", "<|close|>", "<|sep|>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "function_gemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
    "pythonic": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "harmony": (*HARMONY_MARKS, "<|constrain|>"),
    "muse_spark": (),
}
# A call of `weather` with the city Br"no, and one of `now` without arguments.
CALLS = {
    "json_tools": '<tool_call>\n{"name": "weather", "arguments": {"city": "Br\\"no"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nBr\"no\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "glm47": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Br\"no</arg_value>\n"
    "</tool_call>\n<tool_call>now\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Br"no'
    '</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "minicpm5": '<function name="weather"><param name="city">Br"no</param></function>\n'
    '<function name="now"></function>',
    "mistral_list": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Br\\"no"}}, '
    '{"name": "now", "arguments": {}}]',
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Br\\"no"}[TOOL_CALLS]now[ARGS]{}',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    '<|tool_call_argument_begin|>{"city": "Br\\"no"}<|tool_call_end|><|tool_call_begin|>'
    "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="weather" index="0"<|sep|><|open|>argument '
    'key="city" type="string"<|sep|>Br"no<|close|>argument<|sep|><|close|>call<|sep|><|open|>call '
    'tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    "function_gemma": '<start_function_call>call:weather{city:<escape>Br"no<escape>}'
    "<end_function_call><start_function_call>call:now{}<end_function_call>",
    "muse_spark": '<atem:function_calls><atem:invoke name="weather"><atem:parameter name="city">'
    'Br"no</atem:parameter></atem:invoke><atem:invoke name="now"></atem:invoke>'
    "</atem:function_calls>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Br"no<|"|>}<tool_call|><|tool_call>call:now{}'
    "<tool_call|>",
    "pythonic": "<|tool_call_start|>[weather(city='Br\"no'), now()]<|tool_call_end|>",
    "harmony": '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": '
    '"Br\\"no"}to=functions.now<|channel|>commentary json<|message|>{}',
}  # fmt: skip
CALLS["laguna"] = CALLS["glm47"]


@cache
def tokenizer_of(family: str, template: str | None = None) -> TokenizerWrapper:
    bare = tiny.byte_tokenizer("<|stop|>", FAMILIES[family], template)
    if family == "harmony":
        return bare
    parser = import_module(f"mlx_lm.tool_parsers.{family.removesuffix('_list')}")
    detokenizer: Any = BPEStreamingDetokenizer  # annotated too narrowly in mlx-lm
    return TokenizerWrapper(
        bare._tokenizer,
        detokenizer,
        tool_call_start=parser.tool_call_start,
        tool_call_end=parser.tool_call_end,
        tool_parser=parser.parse_tool_call,
    )


TEXT = {"type": "string"}


def tool(name: str, properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*required], **more}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def parser_of(family: str, tools: Sequence[dict[str, Any]]) -> ToolParser:
    parser = make_tool_parser(tokenizer_of(family), tools)
    assert parser is not None
    return parser
