"""`dflash chat`: loads the pair and begins a chat, or answers the prompt on standard input."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import typer

from dflash_mlx.remote.client import is_address
from dflash_mlx.remote.session import Server

from ..cache_options import CacheOptions, finish_writing
from ..kernel_notes import kernel_warnings
from ..loading import load_pair
from ..mcp_servers import configured_servers
from ..option_sources import is_fixed
from ..option_tables import OptionTables, PresetName, with_model_defaults, with_preset
from ..options import (
    DisplayOptions,
    ModelOptions,
    PromptOptions,
    SamplingOptions,
    option,
    option_groups,
)
from ..recommended import with_recommended
from ..remote import RemoteOptions, connect, without_local
from ..report import LogOptions, sampling_json
from ..terminal.keys import (
    KeyReader,
    LeaveChat,
    TypeAhead,
    suspendable,
    terminal_as_stdin,
    unseen_keys,
)
from ..terminal.live_region import ERASE_BELOW
from ..terminal.output import Output
from ..thinking import check_thinking, resolve_thinking
from . import transcript
from .actions import show_loaded
from .dialogue import Dialogue, DisplaySettings
from .loop import chat_loop
from .models import RemoteModel
from .pages import show_header
from .start import can_keep_history, read_beginning, resolve_pair
from .state import ChatState, defaults_of, offer, recommended_defaults, settings_of, values_of
from .tools import ToolBox
from .transcript import Chat


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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a saved chat; without NAME the latest.")
    ] = False,
    latest: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the chat that was saved last.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Chat with the bundled pair: nothing is downloaded.")
    ] = False,
    preset: PresetName = None,
    model_options: ModelOptions,
    cache_options: CacheOptions,
    sampling_options: SamplingOptions,
    prompt_options: PromptOptions,
    markdown: Annotated[
        bool, option("--markdown/--no-markdown", help="Show answers as Markdown.")
    ] = True,
    no_history: Annotated[
        bool, option("--no-history", help="Keep neither prompts nor chats on disk.")
    ] = False,
    mcp: Annotated[
        list[Path] | None,
        typer.Option(
            "--mcp",
            metavar="FILE.json",
            help="MCP servers of a file as Claude Desktop has it, beside [mcp.NAME]; repeatable.",
        ),
    ] = None,
    remote_options: RemoteOptions,
    log_options: LogOptions,
    display_options: DisplayOptions,
) -> None:
    """Chat in the terminal, with tokens/sec and acceptance live.

    /help lists the commands. Text on standard input is the first prompt, or follows it; the chat
    then goes on at the terminal. With stdout redirected, too, there is one answer: it goes to
    stdout and nothing else does.
    """
    out = Output(quiet=display_options.quiet, plain=display_options.plain)
    log = ctx.with_resource(log_options.open("chat", out.warn))
    out.on_error = log.error
    piped = sys.stdin is None or not sys.stdin.isatty()
    model_options, sampling_options, prompt_options = with_preset(
        ctx, preset, model_options, sampling_options, prompt_options
    )
    begins = read_beginning(words or [], resume=resume, latest=latest, piped=piped)
    interactive = not piped or (out.stdout_is_tty and terminal_as_stdin())
    if interactive and not no_history:
        no_history = not can_keep_history(out)
    saved = None if begins.name is None else transcript.load(begins.name)
    model_options = resolve_pair(ctx, model_options, saved, out, demo=demo, interactive=interactive)
    remote = is_address(model_options.model)
    if remote:
        model_options = without_local(ctx, model_options, out)
    general = model_options, sampling_options, prompt_options
    model_options, sampling_options, prompt_options = with_model_defaults(
        ctx, *general, system=saved is None or saved.system is None
    )
    sampling_options.params()  # a wrong value is told before anything is loaded
    servers = configured_servers(mcp or ())
    if no_history and cache_options.cache_disk:
        out.warn("nothing of this chat is kept on disk, so --cache-disk is off")
        cache_options = replace(cache_options, cache_disk=0)
    typed = TypeAhead()
    keys = KeyReader(typed, lambda: out.redraw and out.redraw(), paste_marks(out))
    out.footer = partial(typed.lines, ascii=out.ascii)
    with ExitStack() as context:
        if interactive:
            context.enter_context(unseen_keys())
            if keys.take_echoed() and out.stdout_live:
                out.draw(ERASE_BELOW)
            context.enter_context(suspendable(partial(suspend, keys, out), keys.mark_pastes))
        tools = ToolBox(out, servers)
        context.callback(tools.close)
        with keys.reading() if interactive else nullcontext():
            if remote:
                server, load_seconds = connect(ctx, model_options, remote_options, out)
                model = RemoteModel(server)
            else:
                model, load_seconds = load_pair(model_options, out, cache_options)
            tools.wait()
        source = model.source if isinstance(model, RemoteModel) else model
        template = model.template if isinstance(model, RemoteModel) else model.target.template
        prompt_options = resolve_thinking(ctx, prompt_options, template, out)
        check_thinking(template, prompt_options)
        sampling_options = with_recommended(ctx, sampling_options, source, out)
        settings = settings_of((model_options, sampling_options, prompt_options))
        display = DisplaySettings(markdown, prompt_options.show_thinking, display_options.quiet)
        autosaves = not no_history and (interactive or saved is not None)
        dialogue = Dialogue(model, out, settings=settings, display=display, autosaves=autosaves)
        dialogue.model.check(settings)
        dialogue.log = tools.log = log
        sampling = sampling_json(dialogue.options())
        log.loaded(source, load_seconds, {"mode": dialogue.session.mode, **sampling})
        dialogue.chat, dialogue.tools = Chat(system=prompt_options.system), tools
        state = ChatState(
            dialogue, out, model_options, cache_options, tables=OptionTables(ctx), keys=keys
        )
        state.general = {n: v for n, v in values_of(general).items() if not is_fixed(ctx, n)}
        state.sampling_by = general[1].sampling_by
        state.defaults = recommended_defaults(state, defaults_of(state, model_options.model))
        if interactive:
            tools.ask = state.ask_line
            more = [line for line in (offer(dialogue), tools.summary(dialogue.model)) if line]
            faults = tools.faults()
            show_header(dialogue, load_seconds, preset=preset, more=more, faults=faults)
        else:
            if not isinstance(source, Server):
                out.warn(*kernel_warnings(source.target.kernels))
            out.warn(*tools.faults())
            if tools.servers and (why := dialogue.model.without_tools()):
                out.warn(f"this model {why}: it is told of none")
        if saved is not None and begins.name is not None:
            dialogue.load(begins.name)
            if prompt_options.system is not None:
                dialogue.chat = replace(dialogue.chat, system=prompt_options.system)
            if interactive:
                show_loaded(state, begins.name, saved)
                state.print_line("")
        try:
            if interactive:
                chat_loop(state, keys, begins, no_history=no_history)
            else:
                answer_piped_prompt(state, begins.prompt)
        finally:
            finish_writing(None if remote else getattr(state.dialogue, "pair", None), out)


def paste_marks(out: Output) -> Callable[[str], None] | None:
    """What tells the terminal to mark pastes; None for a terminal that gets no escape codes."""
    if out.stdout_is_tty:
        return partial(write_now, sys.stdout) if out.stdout_live else None
    return partial(write_now, sys.stderr) if out.stderr_live else None


def write_now(stream: IO[str], text: str) -> None:
    """Write to a terminal past the stream's buffer, which may be in use where a signal comes."""
    os.write(stream.fileno(), text.encode())


def suspend(keys: KeyReader, out: Output) -> None:
    """Leave the terminal to the shell."""
    out.erase_live()
    keys.mark_pastes(False)


def answer_piped_prompt(state: ChatState, prompt: str) -> None:
    """Answer the prompt from standard input."""
    try:
        answer = state.dialogue.ask(prompt)
    except LeaveChat as leave:
        raise typer.Exit(leave.code) from None
    if answer.finish_reason == "interrupted":
        raise typer.Exit(130)
