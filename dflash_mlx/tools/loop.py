"""Answers a prompt and runs the tools that the model calls."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from dflash_mlx.answer import Answer, found, without_calls
from dflash_mlx.chat.messages import Messages
from dflash_mlx.chat.tool_parser import ToolParser, make_tool_parser, named_calls, without_tools
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.option_keywords import options_of, takes_options
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session, as_messages
from dflash_mlx.types import Block, Progress, silent

from .call import MAX_ROUNDS, Call, Step, Steps, arguments_of, run_rounds, step_messages
from .functions import Tool, tools_of


def stream_calls(
    session: Session,
    messages: Messages,
    options: GenerationOptions,
    *,
    on_prefill: Progress = silent,
) -> Generator[Block]:
    """Answer messages as `Session.stream`, with the calls taken out of the text of the blocks."""
    tokenizer = session.pair.tokenizer
    parser = make_tool_parser(tokenizer, options.tools)
    blocks = session.stream(named_calls(messages, tokenizer), options, on_prefill=on_prefill)
    return blocks if parser is None else with_calls(blocks, parser)


def with_calls(blocks: Generator[Block], parser: ToolParser) -> Generator[Block]:
    with closing(blocks):
        for block in blocks:
            read = without_calls(block, parser)
            calls = tuple(Call(one.name, one.arguments) for one in found(read) if one.complete)
            yield replace(read, finish_reason=block.finish_reason, calls=calls)


def run_call(tools: dict[str, Tool], call: Call) -> Call:
    """Run a call; returns it with the tool's result or error.

    tools: by name. Only exceptions that are no Exception (Ctrl-C) are raised.
    """
    tool = tools.get(call.name)
    arguments = arguments_of(call)
    if tool is None:
        known = ", ".join(tools) or "none"
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
    text = why if "error" in why.lower() else f"error: {why}"
    return replace(call, result=text, state="failed")


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and its steps.

    text, thinking: of the last step. finish_reason: "stop", "length", or "rounds" if `max_rounds`
    ended it. messages: the whole chat. stats: of each step.
    """

    text: str
    thinking: str
    finish_reason: str
    steps: Steps
    messages: Messages
    stats: tuple[Stats, ...]


@takes_options
def run(
    pair: Pair,
    prompt: str | Messages,
    functions: Iterable[Tool | Callable[..., Any]],
    options: GenerationOptions | None = None,
    *,
    max_rounds: int = MAX_ROUNDS,
    allow: Callable[[Call], bool] | None = None,
    on_block: Callable[[Block], None] | None = None,
    on_call: Callable[[Call], None] | None = None,
    **keywords: Any,
) -> Answered:
    """Answer a prompt, running the tools that the model calls until it calls none.

    functions: Python functions, whose docstrings and annotations describe them to the model, or
    tools, such as `Servers.tools`. allow: whether a call may run (None: all); the model is told if
    it may not or if it fails. on_block: gets new text without the calls. on_call: gets each call
    with its result. The options are a `GenerationOptions`, or its fields.

    Raises UsageError for wrong arguments, and for a model that does not support tools.
    """
    tools = {tool.name: tool for tool in tools_of(functions)}
    given_options = options_of(options, keywords, "dflash")
    if given_options.tools or "tools" in keywords:
        raise UsageError("tools are given twice.", hint="give them as the third argument")
    if why := without_tools(pair.template, pair.tokenizer):
        raise UsageError(f"this model {why}.", hint="choose a model that does")
    chat = as_messages(prompt, raw=False)
    if chat is None:
        raise UsageError("a prompt is a text or messages.", hint="give one of them")
    session = Session(pair, mode=given_options.mode)
    stats: list[Stats] = []
    schemas = [tool.schema for tool in tools.values()]
    step_options = replace(given_options, tools=schemas)

    def answer(steps: Steps) -> Step:
        messages = [*chat, *step_messages(steps, chat)]
        said = Answer()
        for block in stream_calls(session, messages, step_options):
            said.add(block)
            if on_block is not None:
                on_block(block)
        stats.append(session.stats)
        reason = said.finish_reason or "length"
        calls = said.calls if reason == "stop" else ()
        return Step(said.text.strip("\n"), said.thinking.strip("\n"), calls, reason)

    def call_tool(call: Call) -> Call:
        if allow is None or allow(call):
            result = run_call(tools, call)
        else:
            result = replace(call, result="refused by the user", state="refused")
        if on_call is not None:
            on_call(result)
        return result

    steps = run_rounds(answer, call_tool, max_rounds)
    last = steps[-1]
    messages = [*chat, *step_messages(steps, chat)]
    reason = "rounds" if last.calls else last.finish_reason
    return Answered(last.text, last.thinking, reason, steps, messages, tuple(stats))
