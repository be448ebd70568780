"""An answer that grows: takes blocks, and holds text, thinking, calls and statistics."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from dflash_mlx.engine.stats import Stats

from .types import Block, Call, TokenLogprob

if TYPE_CHECKING:  # imports MLX
    from .chat.tool_parser import ToolCall, ToolParser


@dataclass(eq=False, slots=True)
class Answer:
    """An answer without line breaks before its thinking and, behind thinking, before its text.

    parser: takes the calls out of the text, which then has no line breaks before it either.
    single_call: the first call ends the answer. goes_on: whether there is text before its own.
    tokens: ids; empty if a server answered. finish_reason: "stop", "length" or, with a parser,
    "calls". stop: the stop string that ended it.
    """

    stats: Stats = field(default_factory=Stats)
    parser: "ToolParser | None" = None
    single_call: bool = False
    goes_on: bool = False
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""
    stop: str | None = None

    @property
    def ends_in_call(self) -> bool:
        cut = self.parser is not None and self.parser.ends_in_call
        return cut and self.finish_reason != "calls"

    def add(self, block: Block) -> Block:
        """Add a block; returns what it adds, with its calls."""
        if self.parser is not None:
            block = without_calls(block, self.parser, single_call=self.single_call)
        text = block.text
        calls = block.calls
        thinking = block.thinking if self.thinking else block.thinking.lstrip("\n")
        after_thinking = self.thinking or thinking or self.parser is not None
        if after_thinking and not (self.goes_on or self.text):
            text = text.lstrip("\n")
            if self.parser is not None and (cut := len(block.text) - len(text)):
                calls = tuple(replace(one, after=max(0, one.after - cut)) for one in found(block))
        self.tokens += block.tokens
        self.text += text
        self.thinking += thinking
        self.calls += calls
        self.logprobs += block.logprobs
        self.finish_reason = block.finish_reason or self.finish_reason
        self.stop = block.stop
        return replace(block, text=text, thinking=thinking, calls=calls)


def found(answer: Answer | Block) -> "tuple[ToolCall, ...]":
    return cast("tuple[ToolCall, ...]", answer.calls)


def without_calls(block: Block, parser: "ToolParser", *, single_call: bool = False) -> Block:
    """A block with the calls that end in it taken out of its text.

    Calls at the end make the finish reason "calls"; with `single_call` the first one is the end.
    """
    reason = block.finish_reason
    cut = reason == "length" or block.stop is not None
    parsed = parser.feed(block.text, final=bool(reason), cut=cut, stop=block.stop)
    text = parsed.text
    calls = parsed.calls
    if reason == "stop" and parser.calls_ended and not parser.ends_in_call:
        reason = "calls"
    if single_call and parser.calls_ended:
        reason = "calls"
        calls = calls[:1]
        text = text[: calls[0].after]
    return replace(block, text=text, calls=calls, finish_reason=reason)
