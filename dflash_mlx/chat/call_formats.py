"""The formats in which the families of models write tool calls.

Where no format of arguments is given here, mlx-lm's parser reads the calls of a family.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import function_gemma, gemma4, pythonic

from .call_json import STRING
from .reasoning_parser import HARMONY

NAME = r"([\w.\-]+)"
UNTAGGED = {"```json": "```", "```": "```", "": "}"}  # what may stand for the tags: start and end
# What comes before arguments that are a JSON object; the group is the tool's name. Each pattern
# also matches directly after another call.
JSON_HEADERS = {
    "json_tools": r'[\s\[\],}]*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:'
    r"\s*(?=\{)",
    "mistral": rf"\s*{NAME}\s*\[ARGS\]\s*(?=\{{)",
    "kimi_k2": r"\s*(?:<\|tool_call_end\|>\s*)?(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?"
    rf"{NAME}:\d+\s*<\|tool_call_argument_begin\|>\s*(?=\{{)",
}
HARMONY_HEADER = re.compile(
    rf"(?:<\|channel\|>\w+\s+)?to=functions\.{NAME}\s*(?:<\|channel\|>\w+\s*)?"
    r"(?:<\|constrain\|>)?\s*(?:\w+\s*)?<\|message\|>\s*(?=\{)"
)
# Strings in the calls that no header begins: the end of calls does not count inside of them.
STRINGS = {
    "json_tools": r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)',
    "gemma4": r'<\|"\|>.*?(?:<\|"\|>|\Z)',
    "function_gemma": r"<escape>.*?(?:<escape>|\Z)",
    "pythonic": r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)' + r"|'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?\Z)",
}
# What begins a call of the tool NAME where the model left out the start tag.
BARE_STARTS = {
    "json_tools": tuple(
        f'{{"name":{blank}"NAME",{blank}"{key}":{blank}{{'
        for blank in ("", " ")
        for key in ("arguments", "parameters")
    ),
    "qwen3_coder": ("<function=NAME>",),
    "minimax_m2": ('<invoke name="NAME">',),
    "muse_spark": ('<atem:invoke name="NAME">',),
    "glm47": ("NAME<arg_key>", "NAME\n<arg_key>"),
    "longcat": ("NAME<longcat_arg_key>", "NAME\n<longcat_arg_key>"),
}


def one_line_break(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """A format of calls with arguments between tags.

    header: the start of a call; its group is the tool's name. call_tag: what each header begins
    with; empty if one start of calls comes before each call.
    argument_start: the text before a value; its group is the argument's name. argument_tag: what
    it begins with.
    argument_end: the text after a value.
    call_end: the text after a call; empty if a call ends with the end of all calls.
    strip: drops the whitespace around a value that is not a part of it.
    on_lines: whether a tag begins a line.
    """

    header: str
    call_tag: str
    argument_start: str
    argument_tag: str
    argument_end: str
    call_end: str
    strip: Callable[[str], str] = str.strip
    on_lines: bool = False


def keys_and_values(prefix: str) -> TaggedFormat:
    """The format of GLM and its relatives, whose tags have names with this prefix."""
    key = f"{prefix}arg_key"
    return TaggedFormat(
        rf"\s*{NAME}\s*(?=<{key}>)",
        "",
        rf"\s*<{key}>\s*([^<>]*[^<>\s])\s*</{key}>\s*<{prefix}arg_value>",
        f"<{key}>",
        f"</{prefix}arg_value>",
        "",
    )


TAGGED_FORMATS = {
    "glm47": keys_and_values(""),
    "longcat": keys_and_values("longcat_"),
    "qwen3_coder": TaggedFormat(
        r"\s*<function=([^\s<>]+)>",
        "<function=",
        r"\s*<parameter=([^\s<>]+)>",
        "<parameter=",
        "</parameter>",
        "</function>",
        one_line_break,
        on_lines=True,
    ),
    "minimax_m2": TaggedFormat(
        r'\s*<invoke name="([^">]+)">',
        "<invoke name=",
        r'\s*<parameter name="([^">]+)">',
        "<parameter name=",
        "</parameter>",
        "</invoke>",
    ),
    "minicpm5": TaggedFormat(
        r"""\s*["']?([^\s"'<>]+)["']?\s*>""",
        "",
        r"""\s*<param\s+name\s*=\s*["']?([^\s"'<>]+)["']?\s*>""",
        "<param ",
        "</param>",
        "",
    ),
    "muse_spark": TaggedFormat(
        r'\s*<atem:invoke\b[^<>]*?\bname="([^"]+)"[^<>]*>',
        "<atem:invoke",
        r'\s*<atem:parameter\b[^<>]*?\bname="([^"]+)"[^<>]*>',
        "<atem:parameter",
        "</atem:parameter>",
        "</atem:invoke>",
    ),
    "kimi_k3": TaggedFormat(
        r'\s*<\|open\|>call\b[^<>]*?\btool="([^"]+)"[^<>]*<\|sep\|>',
        "<|open|>call",
        r'\s*<\|open\|>argument\b[^<>]*?\bkey="([^"]+)"[^<>]*<\|sep\|>',
        "<|open|>argument",
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
    header: re.Pattern[str] | None = None
    header_has_start: bool = False
    tagged: TaggedFormat | None = None
    parse: Callable[..., Any] = lambda text, tools: None

    def end_in(self, text: str, end: str) -> int:
        """The index of the first `end` in a text that is not inside of a string; -1 without one."""
        strings = STRINGS.get(self.name)
        if strings is None:
            return text.find(end)
        marks = re.finditer(rf"{strings}|(?P<end>{re.escape(end)})", text, re.DOTALL)
        return next((mark.start() for mark in marks if mark["end"]), -1)


HARMONY_CALLS = CallFormat(
    "harmony", ("<|channel|>", "to=functions."), header=HARMONY_HEADER, header_has_start=True
)


def find_call_format(tokenizer: TokenizerWrapper) -> CallFormat | None:
    """The format of a tokenizer's model; None if it is not known."""
    start = tokenizer.tool_call_start
    parse = tokenizer.tool_parser
    if not start or not parse:
        return HARMONY_CALLS if HARMONY.ids(tokenizer) else None
    name = parse.__module__.rpartition(".")[2]
    tagged = TAGGED_FORMATS.get(name)
    pattern = tagged.header if tagged else JSON_HEADERS.get(name)
    header = re.compile(pattern) if pattern else None
    end = tokenizer.tool_call_end or ""
    own = {"pythonic": pythonic_calls, "function_gemma": function_gemma_calls}
    parse = own.get(name) or parse
    return CallFormat(name, (start,), end, header, tagged=tagged, parse=parse)


# Calls that mlx-lm's parsers would cut


def pythonic_calls(text: str, tools: Any = None) -> Any:
    """Calls as Python; raises an exception for other text, of which mlx-lm reads what it can."""
    text = re.sub(STRING, python_string, text.strip(), flags=re.DOTALL)
    tree = ast.parse(text, mode="eval").body
    calls = tree.elts if isinstance(tree, ast.List) else []
    if not all(isinstance(call, ast.Call) and not call.args for call in calls):
        raise ValueError(text)
    return pythonic.parse_tool_call(text, tools)


def python_string(string: re.Match[str]) -> str:
    """A string with its line breaks and unknown escapes as Python writes them."""
    known = re.compile(r"\\(?:[\\'\"abfnrtv]|x[0-9a-f]{2}|u[0-9a-f]{4})|\\", re.IGNORECASE)
    text = known.sub(lambda escape: escape[0] if escape[0][1:] else r"\\", string[0])
    return text.replace("\r", r"\r").replace("\n", r"\n")


def function_gemma_calls(text: str, tools: Any = None) -> Any:
    """Calls as in Gemma 4, but for the quotes; mlx-lm cuts a value at its first bracket."""
    try:
        return gemma4.parse_tool_call(text.replace("<escape>", '<|"|>'), tools)
    except ValueError:
        if text.count("}") > 1:
            raise
        return function_gemma.parse_tool_call(text, tools)


# Where a value between tags ends


@cache
def value_marks(call_format: CallFormat, ended: bool) -> re.Pattern[str]:
    """What matters in a value. ended: whether the text is a whole answer.

    Groups: end, if the format's own structure follows; open and close of a call inside of the
    value; next, the start of another argument.
    """
    tagged, begin, close = parts_of(call_format)
    inside = "|".join(re.escape(tag) for tag in (tagged.argument_tag, tagged.call_end) if tag)
    argument = uncaptured(tagged.argument_start)
    last = r"|\Z" if ended else ""
    end = re.escape(call_format.end)
    after = rf"{argument}|{begin}|{end}{last}"
    if tagged.call_end:
        after += rf"|{close}\s*(?:{begin}|{end}{last})"
    return re.compile(
        rf"(?P<open>{begin}(?=\s*(?:{inside})))|(?P<end>{re.escape(tagged.argument_end)})(?=\s*(?:{after}))"
        rf"|(?P<close>{close})|(?P<next>{argument})"
    )


@cache
def weak_ends(call_format: CallFormat) -> re.Pattern[str]:
    """The end of a value in a whole answer in which no `end` of `value_marks` comes."""
    tagged, begin, close = parts_of(call_format)
    end = re.escape(call_format.end)
    dropped = rf"(?:{close}(?:\s*{end})?|{end})\s*(?:{begin}|\Z)"
    if tagged.call_end:
        dropped += rf"|{close}\s*{end}"
    after = rf"{uncaptured(tagged.argument_start)}|{close}"
    return re.compile(rf"{re.escape(tagged.argument_end)}(?=\s*(?:{after}))|(?=\s*(?:{dropped}))")


def parts_of(call_format: CallFormat) -> tuple[TaggedFormat, str, str]:
    """A tagged format, and the patterns of the start and of the end of one call."""
    tagged = call_format.tagged
    assert tagged is not None
    start = re.escape(call_format.starts[0])
    start = rf"(?:{start}\s*)?" if tagged.call_tag else start
    return tagged, start + uncaptured(tagged.header), re.escape(tagged.call_end or call_format.end)


def uncaptured(pattern: str) -> str:
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", pattern)
