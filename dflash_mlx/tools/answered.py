"""Answers a prompt with tools: `run`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Unpack

from dflash_mlx.arguments import check_names
from dflash_mlx.chat.messages import Messages
from dflash_mlx.chat.numbered_calls import named_calls
from dflash_mlx.chat.tool_support import without_tools
from dflash_mlx.errors import UsageError
from dflash_mlx.options import AnswerOptions
from dflash_mlx.pair import Pair
from dflash_mlx.request import Mode
from dflash_mlx.session import Session, as_messages
from dflash_mlx.stats import Stats
from dflash_mlx.types import Block

from .call import Call, Step
from .call_messages import step_messages
from .call_splitter import CallSplitter
from .calling import run_call
from .rounds import MAX_ROUNDS, Steps, run_rounds
from .tool import Tool, tools_of


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


@check_names
def run(
    pair: Pair,
    prompt: str | Messages,
    functions: Iterable[Tool | Callable[..., Any]],
    *,
    mode: Mode = "dflash",
    max_rounds: int = MAX_ROUNDS,
    allow: Callable[[Call], bool] = allow_all,
    on_block: Callable[[Block], None] = ignore_block,
    on_call: Callable[[Call], None] | None = None,
    **options: Unpack[AnswerOptions],
) -> Answered:
    """Answer a prompt, running the tools that the model calls until it calls none.

    A tool is a Python function (its docstring and annotations are what the model is told) or a
    `Tool`, as `Servers.tools` are. `allow` says of each call whether it may run; one that may not,
    or that fails, is told to the model. `on_block` gets the text as it comes, without the calls,
    `on_call` each call with its result. `options` are those of `Session.prepare`.

    Raises UsageError for wrong arguments and for a model that does not call tools.
    """
    box = {tool.name: tool for tool in tools_of(functions)}
    if options.pop("tools", None) is not None:
        raise UsageError("tools are given twice.", hint="give them as the third argument")
    if why := without_tools(pair.target):
        raise UsageError(f"this model {why}.", hint="choose a model that does")
    given = as_messages(prompt, raw=False)
    if given is None:
        raise UsageError("a prompt is a text or messages.", hint="give one of them")
    session, stats = Session(pair, mode=mode), []
    schemas = [tool.schema for tool in box.values()]
    tokenizer = pair.target.tokenizer
    asked: Any = {**options, "tools": schemas}

    def answer(steps: Steps) -> Step:
        messages = [*given, *step_messages(steps, given)]
        splitter = CallSplitter(tokenizer, schemas)
        blocks = []
        for block in session.stream(named_calls(messages, tokenizer), **asked):
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
