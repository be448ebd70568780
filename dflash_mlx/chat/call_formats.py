"""The formats in which the families of models write tool calls.

Where no format of arguments is given here, mlx-lm's parser reads the calls of a family.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import regex
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import gemma4, pythonic

from .reasoning_parser import HARMONY

NAME = r"([\w.\-]+)"
# What comes before arguments that are a JSON object; the group is the tool's name. Each pattern
# also matches directly after another call.
JSON_HEADERS = {
    "json_tools": r'[\s\[\],}]*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:'
    r"\s*(?=\{)",
    "mistral": rf"\s*{NAME}\s*\[ARGS\]\s*(?=\{{)",
    "kimi_k2": r"\s*(?:<\|tool_call_end\|>\s*)?(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?"
    rf"{NAME}:\d+\s*<\|tool_call_argument_begin\|>\s*(?=\{{)",
}
HARMONY_HEADER = regex.compile(
    rf"(?:<\|channel\|>\w+\s+)?to=functions\.{NAME}\s*(?:<\|channel\|>\w+\s*)?"
    r"(?:<\|constrain\|>)?\s*(?:\w+\s*)?<\|message\|>\s*(?=\{)"
)
# Strings in the calls that no header begins: the end of calls does not count inside of them.
JSON_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
STRINGS = {
    "gemma4": r'<\|"\|>.*?(?:<\|"\|>|\Z)',
    "function_gemma": r"<escape>.*?(?:<escape>|\Z)",
    "pythonic": JSON_STRING + r"|'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?\Z)",
}
# How a call of the tool NAME begins where the model left out the start tag.
BARE_STARTS = {
    "json_tools": r'(?:(?P<fence>```(?:json)?)\s*)?(?P<bare>\{\s*"name"\s*:\s*"(?:NAME)"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{))',
    "qwen3_coder": "(?P<bare><function=(?:NAME)>)",
    "minimax_m2": '(?P<bare><invoke name="(?:NAME)">)',
    "muse_spark": '(?P<bare><atem:invoke name="(?:NAME)">)',
    "glm47": r"(?P<bare>(?<![\w.\-])(?:NAME)\s*<arg_key>)",
}


def one_line_break(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """A format of calls with arguments between tags.

    header: the start of a call; its group is the tool's name.
    argument_start: the text before a value; its group is the argument's name.
    argument_end: the text after a value.
    call_end: the text after a call; empty if a call ends with the end of all calls.
    strip: drops the whitespace around a value that is not a part of it.
    """

    header: str
    argument_start: str
    argument_end: str
    call_end: str
    strip: Callable[[str], str] = str.strip


def keys_and_values(prefix: str) -> TaggedFormat:
    """The format of GLM and its relatives, whose tags have names with this prefix."""
    key = f"{prefix}arg_key>"
    start = rf"\s*<{key}\s*([^<>]*[^<>\s])\s*</{key}\s*<{prefix}arg_value>"
    return TaggedFormat(rf"\s*{NAME}\s*(?=<{key})", start, f"</{prefix}arg_value>", "")


TAGGED_FORMATS = {
    "glm47": keys_and_values(""),
    "longcat": keys_and_values("longcat_"),
    "qwen3_coder": TaggedFormat(
        r"\s*<function=([^\s<>]+)>",
        r"\s*<parameter=([^\s<>]+)>",
        "</parameter>",
        "</function>",
        one_line_break,
    ),
    "minimax_m2": TaggedFormat(
        r'\s*<invoke name="([^"<>]+)">',
        r'\s*<parameter name="([^"<>]+)">',
        "</parameter>",
        "</invoke>",
    ),
    "minicpm5": TaggedFormat(
        r"""\s*["']?([^\s"'<>]+)["']?\s*>""",
        r"""\s*<param\s+name\s*=\s*["']?([^\s"'<>]+)["']?\s*>""",
        "</param>",
        "",
    ),
    "muse_spark": TaggedFormat(
        r'\s*<atem:invoke\s(?:[^<>]*\s)?name="([^"<>]+)"[^<>]*>',
        r'\s*<atem:parameter\s(?:[^<>]*\s)?name="([^"<>]+)"[^<>]*>',
        "</atem:parameter>",
        "</atem:invoke>",
    ),
    "kimi_k3": TaggedFormat(
        r'\s*<\|open\|>call\s(?:[^<>]*\s)?tool="([^"<>]+)"[^<>]*<\|sep\|>',
        r'\s*<\|open\|>argument\s(?:[^<>]*\s)?key="([^"<>]+)"[^<>]*<\|sep\|>',
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
        str,
    ),
}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's format of tool calls.

    name: that of mlx-lm's parser, or harmony. starts: the texts that start calls. end: the text
    after all calls; empty if a call ends with its JSON or the answer. header: the start of a call
    whose arguments are read here; its group is the tool's name. It comes after a start, or includes
    the start if `header_has_start`. tagged: how these arguments are written; None for JSON.
    parse: from the text between start and end to a call {"name", "arguments"} or a list of them.
    """

    name: str
    starts: tuple[str, ...]
    end: str = ""
    header: regex.Pattern[str] | None = None
    header_has_start: bool = False
    tagged: TaggedFormat | None = None
    parse: Callable[..., Any] = lambda text, tools: None

    def end_in(self, text: str, end: str) -> int:
        """The index of the first `end` in a text that is not inside of a string; -1 without one."""
        strings = "(?!)" if self.tagged else STRINGS.get(self.name, JSON_STRING)
        marks = re.finditer(rf"{strings}|(?P<end>{re.escape(end)})", text, re.DOTALL)
        return next((mark.start() for mark in marks if mark["end"]), -1)


HARMONY_CALLS = CallFormat(
    "harmony", ("<|channel|>", "to=functions."), header=HARMONY_HEADER, header_has_start=True
)


def find_call_format(tokenizer: TokenizerWrapper) -> CallFormat | None:
    start = tokenizer.tool_call_start
    parse = tokenizer.tool_parser
    if not start or not parse:
        return HARMONY_CALLS if HARMONY.ids(tokenizer) else None
    name = parse.__module__.rpartition(".")[2]
    tagged = TAGGED_FORMATS.get(name)
    pattern = tagged.header if tagged else JSON_HEADERS.get(name)
    header = regex.compile(pattern) if pattern else None
    end = tokenizer.tool_call_end or ""
    own = {"pythonic": pythonic_calls, "function_gemma": function_gemma_calls}
    return CallFormat(name, (start,), end, header, tagged=tagged, parse=own.get(name) or parse)


def pythonic_calls(text: str, tools: Any = None) -> Any:
    """Calls as Python; raises an exception for other text, of which mlx-lm reads what it can."""
    text = re.sub(STRINGS["pythonic"], lambda string: string[0].replace("\n", r"\n"), text)
    tree = ast.parse(text.strip(), mode="eval").body
    calls = tree.elts if isinstance(tree, ast.List) else []
    if not all(isinstance(call, ast.Call) and not call.args for call in calls):
        raise ValueError(text)
    return pythonic.parse_tool_call(text, tools)


def function_gemma_calls(text: str, tools: Any = None) -> Any:
    """Calls as in Gemma 4, but for the quotes; mlx-lm cuts a value at its first bracket."""
    return gemma4.parse_tool_call(text.replace("<escape>", '<|"|>'), tools)


# Where arguments between tags end


@dataclass(frozen=True, slots=True)
class Marks:
    """Patterns for a tagged format.

    value: what matters in a value. Groups: end, if the format's own structure follows; open and
    close of a call inside of the value; next, the start of another argument. whole: the same for a
    whole answer. weak: the end of a value in a whole answer in which no other end comes. after:
    what follows an argument. Groups: close, the end of the call; rest, which is none of the call.
    """

    value: regex.Pattern[str]
    whole: regex.Pattern[str]
    weak: regex.Pattern[str]
    after: regex.Pattern[str]


@cache
def marks_of(call_format: CallFormat) -> Marks:
    tagged = call_format.tagged
    assert tagged is not None
    end = regex.escape(call_format.end)
    close = regex.escape(tagged.call_end) or end
    start = regex.escape(call_format.starts[0])
    # A call with tags of its own may have no start.
    begin = (rf"(?:{start}\s*)?" if tagged.call_end else start) + uncaptured(tagged.header)
    argument = uncaptured(tagged.argument_start)
    argument_end = regex.escape(tagged.argument_end)
    value = []
    for last in (r"(?!)", r"\Z"):
        after = rf"{argument}|{begin}|{end}|{last}|{close}\s*(?:{begin}|{end}|{last})"
        if not tagged.call_end:
            after = rf"{argument}|{begin}|{end}|{last}"
        value.append(
            rf"(?P<open>{begin}(?=\s*(?:{argument}|{close})))|(?P<end>{argument_end})(?=\s*(?:{after}))"
            rf"|(?P<close>{close})|(?P<next>{argument})"
        )
    dropped = rf"(?:{close}(?:\s*{end})?|{end})\s*(?:{begin}|\Z)"
    if tagged.call_end:
        dropped += rf"|{close}\s*{end}"
    weak = rf"{argument_end}(?=\s*(?:{argument}|{close}))|(?=\s*(?:{dropped}))"
    own_close = close if tagged.call_end else "(?!)"
    after = rf"\s*(?:(?P<close>{own_close})|(?P<rest>{end}|{begin}|{argument}))"
    return Marks(*map(regex.compile, (*value, weak, after)))


def uncaptured(pattern: str) -> str:
    return regex.sub(r"(?<!\\)\((?!\?)", "(?:", pattern)
