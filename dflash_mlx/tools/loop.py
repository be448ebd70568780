"""Answers a prompt with tools: `run`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.messages import Messages
from dflash_mlx.chat.tool_parser import make_tool_parser, named_calls, without_tools
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.options import GenerationOptions, options_of, takes_options
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session, as_messages
from dflash_mlx.types import Block

from .call import MAX_ROUNDS, Call, Step, Steps, arguments_of, run_rounds, step_messages
from .functions import Tool, tools_of

# Takes the calls of tools out of the blocks of one answer.


class CallSplitter:
    """Splits the answer of a model that was told of `tools` (JSON schemas)."""

    def __init__(self, tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]):
        self._reader = make_tool_parser(tokenizer, tools)
        self._found: list[Call] = []

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that are whole."""
        return tuple(self._found[: self._reader.closed if self._reader else 0])

    def split(self, block: Block) -> Block:
        """The block with its text outside of calls."""
        if self._reader is None:
            return block
        said = self._reader.read(block.text, final=bool(block.finish_reason))
        for part in said.parts:
            if part.name:
                self._found.append(Call(part.name, ""))
            call = self._found[part.number]
            self._found[part.number] = replace(call, arguments=call.arguments + part.arguments)
        return replace(block, text=said.text)


# How one call of a tool is run.


def run_call(box: dict[str, Tool], call: Call) -> Call:
    """A call with what came of it; whatever goes wrong is its result.

    What is no Exception (Ctrl-C) is raised.
    """
    tool, arguments = box.get(call.name), arguments_of(call)
    if tool is None:
        known = ", ".join(box) or "none"
        return failed(call, f"there is no tool '{call.name}'; there are: {known}")
    if arguments is None:
        return failed(call, f"the arguments are no JSON object: {call.arguments:.200}")
    try:
        result = tool.run(arguments)
    except DFlashError as error:
        return failed(call, error.message)
    except Exception as error:  # a tool may raise any exception
        return failed(call, f"{type(error).__name__}: {first_line(error)}")
    return replace(call, result=result, state="done")


def failed(call: Call, why: str) -> Call:
    """A call that went wrong, as the model is told."""
    text = why if "error" in why.lower() else f"error: {why}"
    return replace(call, result=text, state="failed")


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with all that led to it.

    text, thinking: of the last step. finish_reason: stop, length, or rounds where the limit of
    rounds ended it. messages: the whole chat, to go on with. stats: of each step.
    """

    text: str
    thinking: str
    finish_reason: str
    steps: Steps
    messages: Messages
    stats: tuple[Stats, ...]


def allow_all(call: Call) -> bool:
    """Who gives functions of their own wants them called."""
    return True


def ignore_block(block: Block) -> None:
    """For who waits for the whole answer."""


@takes_options
def run(
    pair: Pair,
    prompt: str | Messages,
    functions: Iterable[Tool | Callable[..., Any]],
    options: GenerationOptions | None = None,
    *,
    max_rounds: int = MAX_ROUNDS,
    allow: Callable[[Call], bool] = allow_all,
    on_block: Callable[[Block], None] = ignore_block,
    on_call: Callable[[Call], None] | None = None,
    **keywords: Any,
) -> Answered:
    """Answer a prompt, running the tools that the model calls until it calls none.

    A tool is a Python function (its docstring and annotations are what the model is told) or a
    `Tool`, as `Servers.tools` are. `allow` says of each call whether it may run; one that may not,
    or that fails, is told to the model. `on_block` gets the text as it comes, without the calls,
    `on_call` each call with its result. The options are a `GenerationOptions`, or its fields.

    Raises UsageError for wrong arguments and for a model that does not call tools.
    """
    box = {tool.name: tool for tool in tools_of(functions)}
    asked = options_of(options, keywords, "dflash")
    if asked.tools or "tools" in keywords:
        raise UsageError("tools are given twice.", hint="give them as the third argument")
    if why := without_tools(pair.template, pair.tokenizer):
        raise UsageError(f"this model {why}.", hint="choose a model that does")
    given = as_messages(prompt, raw=False)
    if given is None:
        raise UsageError("a prompt is a text or messages.", hint="give one of them")
    session = Session(pair, mode=asked.mode)
    stats: list[Stats] = []
    schemas = [tool.schema for tool in box.values()]
    tokenizer = pair.tokenizer
    asked = replace(asked, tools=schemas)

    def answer(steps: Steps) -> Step:
        messages = [*given, *step_messages(steps, given)]
        splitter = CallSplitter(tokenizer, schemas)
        blocks = []
        for block in session.stream(named_calls(messages, tokenizer), asked):
            blocks.append(splitter.split(block))
            on_block(blocks[-1])
        stats.append(session.stats)
        text, thinking = ("".join(getattr(b, n) for b in blocks) for n in ("text", "thinking"))
        reason = blocks[-1].finish_reason or "length"
        calls = splitter.calls if reason == "stop" else ()
        return Step(text.strip("\n"), thinking.strip("\n"), calls, reason)

    def call_tool(call: Call) -> Call:
        if allow(call):
            done = run_call(box, call)
        else:
            done = replace(call, result="refused by the user", state="refused")
        if on_call is not None:
            on_call(done)
        return done

    steps = run_rounds(answer, call_tool, max_rounds)
    last = steps[-1]
    messages = [*given, *step_messages(steps, given)]
    reason = "rounds" if last.calls else last.finish_reason
    return Answered(last.text, last.thinking, reason, steps, messages, tuple(stats))
