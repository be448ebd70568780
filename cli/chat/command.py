"""`dflash chat`: opens the backend and runs a chat, or answers the prompt on standard input."""

import os
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from dflash_mlx.options import GenerationOptions

from ..answer import cut_note
from ..backend.base import Backend
from ..backend.open import open_backend
from ..config_file import configured_servers
from ..options import (
    CacheOptions,
    DisplayOptions,
    Flags,
    ModelOptions,
    Options,
    PromptOptions,
    RemoteOptions,
    option_groups,
)
from ..report import LogOptions
from ..resolve import fit, sampling_is_open, with_target_defaults
from ..terminal.keys import KeyReader, TypeAhead
from ..terminal.live_region import ERASE_BELOW
from ..terminal.output import Output
from ..terminal.signals import LeaveChat, cbreak_mode, suspendable
from . import transcript
from .actions import show_loaded
from .dialogue import Dialogue, DisplaySettings
from .loop import chat_loop
from .pages import show_header
from .settings import defaults_of, recommended_defaults
from .start import ChatOptions, Start, read_start
from .state import ChatState
from .tools import ToolBox
from .transcript import Chat

GROUPS = Flags((ModelOptions, CacheOptions, GenerationOptions, PromptOptions))


@option_groups
def chat(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|PROMPT",
            help="The chat that --resume goes on with; a first prompt.",
            autocompletion=transcript.complete_name,
        ),
    ] = None,
    *,
    options: Annotated[Options, GROUPS],
    own: ChatOptions,
    remote: RemoteOptions,
    log_options: LogOptions,
    display: DisplayOptions,
) -> None:
    """Chat in the terminal.

    \b
      dflash chat                       with the best model you have
      dflash chat -m qwen3:4b "Hello"   another model, and a first prompt
      dflash chat -c                    continue the last chat

    In the chat, /help lists the commands. Text from a pipe follows the first prompt, and the chat
    continues at the terminal; if stdout is a pipe or a file, too, it answers once.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    log = ctx.with_resource(log_options.open("chat", out.warn))
    out.on_error = log.error
    start = read_start(options, words or [], own, out)
    keeps_system = start.saved is not None and start.saved.system is not None
    options = with_target_defaults(start.options, keep_system=keeps_system)
    servers = configured_servers(own.mcp or ())
    keys = make_keys(out)
    with ExitStack() as context:
        if start.interactive:
            take_terminal(context, keys, out)
        tools = ToolBox(out, servers)
        context.callback(tools.close)
        with keys.reading() if start.interactive else nullcontext():
            backend, load_seconds = open_backend(options, options.cache, remote, out)
            tools.wait()
        options = fit(options, backend.info, out, recommended=True)
        state = open_chat(options, start, backend, tools, keys, out)
        dialogue = state.dialogue
        dialogue.log = log
        tools.log = log
        log.loaded(backend, load_seconds, dialogue.options())
        show_start(state, start, load_seconds)
        try:
            if start.interactive:
                chat_loop(state, keys, start)
            else:
                answer_piped_prompt(state, start.prompt)
        finally:
            dialogue.backend.finish(out)


def make_keys(out: Output) -> KeyReader:
    typed = TypeAhead()
    out.footer = partial(typed.lines, ascii=out.ascii)
    stream, gets_codes = sys.stderr, out.stderr_live
    if out.stdout_is_tty:
        stream, gets_codes = sys.stdout, out.stdout_live

    def write(text: str) -> None:
        """Write to the terminal without the stream's buffer, which a signal may find in use."""
        os.write(stream.fileno(), text.encode())

    return KeyReader(typed, lambda: out.redraw and out.redraw(), write if gets_codes else None)


def take_terminal(context: ExitStack, keys: KeyReader, out: Output) -> None:
    """Switch off echo until the context ends. Ctrl-Z first restores the terminal."""

    def suspend() -> None:
        out.erase_live()
        keys.mark_pastes(False)

    context.callback(keys.end_marks)
    context.enter_context(cbreak_mode())
    if keys.take_echoed() and out.stdout_live:
        out.draw(ERASE_BELOW)
    context.enter_context(suspendable(suspend, keys.mark_pastes))


def open_chat(
    options: Options,
    start: Start,
    backend: Backend,
    tools: ToolBox,
    keys: KeyReader,
    out: Output,
) -> ChatState:
    """The chat with a loaded model; UsageError for options that the model cannot use."""
    settings = options.generation
    if settings.mode == "baseline":  # which is kept in `ModelInfo.drafting` instead
        settings = replace(settings, mode="auto")
    backend.check(settings)
    prompt = options.prompt
    dialogue = Dialogue(
        backend,
        out,
        settings=settings,
        display=DisplaySettings(
            start.own.markdown,
            prompt.show_thinking,
            notify=start.own.notify if start.interactive else "off",
        ),
        autosaves=not start.no_history and (start.interactive or start.saved is not None),
    )
    if start.name is None:
        dialogue.chat = Chat(system=prompt.system)
    else:
        chat = dialogue.load(start.name)
        if prompt.system is not None:
            dialogue.chat = replace(chat, system=prompt.system)
    dialogue.tools = tools
    general = start.options
    state = ChatState(dialogue, out, replace(general, model=options.model), keys=keys)
    state.sampling_by = None if sampling_is_open(general) else general.prompt.sampling_by
    state.defaults = recommended_defaults(state, defaults_of(state, options.model.model))
    if start.interactive:
        tools.ask = state.ask_line
        tools.put_back = state.keep_draft
    return state


def show_start(state: ChatState, start: Start, load_seconds: float) -> None:
    """Print the header and the end of the saved chat; without a terminal only warnings."""
    dialogue = state.dialogue
    out = state.out
    tools = dialogue.tools
    if start.interactive:
        show_header(dialogue, load_seconds, start.own.preset)
    else:
        out.warn(*dialogue.info.warnings)
        out.warn(*tools.failures())
        if tools.servers and (reason := dialogue.info.no_tools):
            out.warn(f"this model {reason}, so the tools are not sent")
    if start.interactive and start.saved is not None and start.name is not None:
        show_loaded(state, start.name, start.saved)
        state.print_line("")


def answer_piped_prompt(state: ChatState, prompt: str) -> None:
    """Answer the prompt from standard input; typer.Exit(130) after Ctrl-C."""
    try:
        answer = state.dialogue.ask(prompt)
    except LeaveChat as leave:
        raise typer.Exit(leave.code) from None
    if answer.finish_reason == "length" and not state.out.stderr_is_tty:  # else with the numbers
        dialogue = state.dialogue
        state.out.warn(cut_note(answer, dialogue.info, dialogue.settings.max_tokens))
    if answer.finish_reason == "interrupted":
        raise typer.Exit(130)
