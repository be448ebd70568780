"""`dflash chat`: reads a prompt, answers it and saves both, until the user leaves.

Knows the order of steps; `LineEditor` reads keys, `commands` runs commands, `Dialogue` answers.
"""

import shlex
import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from dflash_mlx.errors import DFlashError, UsageError

from ..cache_options import CacheOptions, finish_writing
from ..chat_settings import ChatSettings
from ..first_run import choose_pair
from ..kernel_notes import kernel_warnings
from ..loading import load_pair
from ..modes import resolve_models
from ..options import (
    DisplayOptions,
    ModelOptions,
    PromptOptions,
    SamplingOptions,
    option,
    option_groups,
    option_source,
)
from ..prompt_input import read_stdin
from ..terminal.interrupt import LeaveChat
from ..terminal.line_editor import LineEditor, echo_off
from ..terminal.output import Output
from ..terminal.suspend import suspendable
from ..thinking import check_thinking, resolve_thinking
from . import transcript
from .commands import complete, dispatch, is_command, unescape
from .dialogue import LEAVE_WINDOW, Dialogue, DisplaySettings
from .file_actions import show_loaded
from .header import show_header
from .state import ChatState
from .transcript import Chat


@option_groups
def chat(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The saved chat that --resume goes on with."),
    ] = None,
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a saved chat; without NAME the latest.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Chat with the bundled pair: nothing is downloaded.")
    ] = False,
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
    display_options: DisplayOptions,
) -> None:
    """Chat in the terminal, with tokens/sec and acceptance live.

    /help lists the commands. With standard input redirected it is one prompt: the answer goes to
    stdout and nothing else does.
    """
    out = Output(quiet=display_options.quiet, plain=display_options.plain)
    if name is not None and not resume:
        raise UsageError(
            f"'{name}' is not expected here.",
            hint=f"--resume {name} goes on with a saved chat; `dflash generate` answers one prompt",
        )
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if interactive and not no_history:
        no_history = not can_keep_history(out)
    piped_prompt = "" if interactive else read_piped_prompt()
    saved = None
    if resume:
        name = name or latest_chat_name()
        saved = transcript.load(name)
    params = sampling_options.params()
    model_options = resolve_pair(ctx, model_options, saved, out, demo=demo, interactive=interactive)
    if no_history and cache_options.cache_disk:
        out.warn("nothing of this chat is kept on disk, so --cache-disk is off")
        cache_options = replace(cache_options, cache_disk=0)
    pair, load_seconds = load_pair(model_options, out, cache_options)
    prompt_options = resolve_thinking(ctx, prompt_options, pair.target.template, out)
    check_thinking(pair.target.template, prompt_options)
    settings = ChatSettings(
        params,
        sampling_options.max_tokens,
        model_options.block_size,
        model_options.accept,
        tuple(sampling_options.stop or ()),
        prompt_options.think,
        prompt_options.effort,
        "auto" if model_options.mode == "baseline" else model_options.mode,
        model_options.tree_budget,
    )
    display = DisplaySettings(markdown, prompt_options.show_thinking, display_options.quiet)
    autosaves = not no_history and (interactive or resume)
    dialogue = Dialogue(pair, out, settings=settings, display=display, autosaves=autosaves)
    dialogue.chat = Chat(system=prompt_options.system)
    state = ChatState(dialogue, out, model_options, cache_options)
    if interactive:
        show_header(dialogue, load_seconds)
    else:
        out.warn(*kernel_warnings(pair.target.kernels))
    if saved is not None and name is not None:
        dialogue.load(name)
        if prompt_options.system is not None:
            dialogue.chat = replace(dialogue.chat, system=prompt_options.system)
        if interactive:
            show_loaded(state, name, saved)
            state.print_line("")
    try:
        if interactive:
            with echo_off(), suspendable(out.erase_live):
                chat_loop(state, no_history=no_history)
        else:
            answer_piped_prompt(state, piped_prompt)
    finally:
        finish_writing(getattr(state.dialogue, "pair", None), out)


def chat_loop(state: ChatState, *, no_history: bool) -> None:
    """Read and handle input until the user leaves; typer.Exit after Ctrl-C twice."""
    history = None if no_history else transcript.data_folder() / "history"
    editor = LineEditor(state.out, lambda text: complete(state, text), history)
    dialogue, code = state.dialogue, 0
    try:
        while True:
            try:
                text = editor.read()
                dialogue.interrupted_at = float("-inf")
                handle_input(state, text)
            except KeyboardInterrupt:
                state.out.clear_status()
                now = time.monotonic()
                if now - dialogue.interrupted_at <= LEAVE_WINDOW:
                    raise LeaveChat(130) from None
                dialogue.interrupted_at = now
                state.print_line(
                    "  Ctrl-C again to leave, or Ctrl-D; /help lists the commands", "dim"
                )
    except EOFError:
        pass
    except LeaveChat as leave:
        code = leave.code
    show_resume_hint(state)
    if code:
        raise typer.Exit(code)


def handle_input(state: ChatState, text: str) -> None:
    """Run a command or answer a prompt; prints errors and returns."""
    text = text.strip("\n")  # typed with Enter during the last answer
    if not text.strip():
        return
    try:
        if is_command(text):
            dispatch(state, text)
        else:
            state.print_line("")
            state.dialogue.ask(unescape(text).strip())
    except DFlashError as error:
        state.out.error(error.message, error.hint)
    state.print_line("")


def answer_piped_prompt(state: ChatState, prompt: str) -> None:
    """Answer the prompt from standard input."""
    try:
        answer = state.dialogue.ask(prompt)
    except LeaveChat as leave:
        raise typer.Exit(leave.code) from None
    if answer.finish_reason == "interrupted":
        raise typer.Exit(130)


def read_piped_prompt() -> str:
    """Read standard input; UsageError when it is empty."""
    text = read_stdin().strip()
    if not text:
        raise UsageError("the prompt is empty.", hint="give it on standard input")
    return text


def latest_chat_name() -> str:
    """The name of the chat saved last."""
    names = transcript.chat_names()
    if not names:
        raise DFlashError("there is no saved chat yet.", hint="leave --resume out")
    return names[0]


def resolve_pair(
    ctx: typer.Context,
    model_options: ModelOptions,
    saved: Chat | None,
    out: Output,
    *,
    demo: bool,
    interactive: bool,
) -> ModelOptions:
    """The pair of the options, of the saved chat, or one that suits this machine."""
    model_options = resolve_models(ctx, model_options)
    if demo:
        if option_source(ctx, "model") == "COMMANDLINE":
            raise UsageError(
                "--demo and --model name different models.", hint="leave one of them out"
            )
        return replace(model_options, model=None, draft=None)
    if model_options.model is None and saved is not None and saved.model not in (None, "bundled"):
        draft = model_options.draft or (None if model_options.no_draft else saved.draft)
        return replace(model_options, model=saved.model, draft=draft)
    if model_options.model is None and saved is None and model_options.draft is None:
        return choose_pair(model_options, out, interactive=interactive)
    return model_options


def can_keep_history(out: Output) -> bool:
    """Whether chats and prompts can be kept on disk; says why they cannot."""
    try:
        transcript.check_data_folder()
    except DFlashError as error:
        out.warn(f"{error.message} Nothing of this chat is kept; {error.hint}")
        return False
    return True


def show_resume_hint(state: ChatState) -> None:
    """Print how to resume this chat, once it is on disk; a save that failed is tried again."""
    dialogue = state.dialogue
    if not dialogue.autosaves or not dialogue.chat.turns:
        return
    if not dialogue.file.holds(dialogue.chat):
        dialogue.autosave()
    if dialogue.file.name and dialogue.file.holds(dialogue.chat):
        state.out.note(f"saved: dflash chat --resume {shlex.quote(dialogue.file.name)}")
