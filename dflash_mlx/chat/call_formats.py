"""How families write calls of tools: the marks around them, and where JSON arguments begin.

mlx-lm's parsers know most families; gpt-oss, which it has no parser for, is added here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .tagged_arguments import TAGGED, Tagged
from .thinking import HARMONY

NAME = r"([\w.\-]+)"
# What stands before arguments that are a JSON object, of formats that have such; one group, the
# name. Each may follow a call before it.
HEADS = {
    "json_tools": r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=[{\[])',
    "mistral": rf"\s*{NAME}\s*\[ARGS\]\s*(?=\{{)",
    "kimi_k2": r"\s*(?:<\|tool_call_end\|>\s*)?(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?"
    rf"{NAME}:\d+\s*<\|tool_call_argument_begin\|>\s*(?=\{{)",
}
HARMONY_HEAD = re.compile(
    rf"(?:<\|channel\|>\w+\s+)?to=functions\.{NAME}\s*(?:<\|channel\|>\w+\s*)?"
    r"(?:<\|constrain\|>)?\s*(?:\w+\s*)?<\|message\|>\s*(?=\{)"
)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's format.

    name: mlx-lm's of the parser, or harmony. starts: what begins calls. end: what ends them; empty
    where nothing does, and calls are as long as the answer or their JSON. head: found behind a
    start, or with it where `heads_start`; arguments behind it come as they are written: JSON, or
    one by one where `tagged`. parse: text between start and end to a call {"name", "arguments"} or
    several; None where `head` finds all calls.
    """

    name: str
    starts: tuple[str, ...]
    end: str = ""
    head: re.Pattern[str] | None = None
    heads_start: bool = False
    tagged: Tagged | None = None
    parse: Callable[..., Any] | None = None


HARMONY_CALLS = CallFormat(
    "harmony", ("<|channel|>", "to=functions."), head=HARMONY_HEAD, heads_start=True
)


def call_format(tokenizer: TokenizerWrapper) -> CallFormat | None:
    """The format of a tokenizer's model; None where nobody knows how it calls tools."""
    start, parse = tokenizer.tool_call_start, tokenizer.tool_parser
    if start and parse:
        name = parse.__module__.rpartition(".")[2]
        tagged = TAGGED.get(name)
        head = tagged.head if tagged else re.compile(HEADS[name]) if name in HEADS else None
        end = tokenizer.tool_call_end or ""
        return CallFormat(name, (start,), end, head, tagged=tagged, parse=parse)
    return HARMONY_CALLS if HARMONY.ids(tokenizer) else None
