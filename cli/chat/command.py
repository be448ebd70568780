"""`dflash chat`: read a prompt, answer it, remember both, until the user leaves.

Knows the order of things; typing is `prompt`'s, commands are `commands`', answers `dialogue`'s.
"""

import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from dflash_mlx.errors import DFlashError, UsageError

from ..kernel_notes import kernel_warnings
from ..loading import load_pair
from ..modes import settle_models
from ..options import (
    ModelOptions,
    PromptOptions,
    SamplingOptions,
    ScreenOptions,
    grouped,
    option,
    source,
)
from ..output import Output
from ..question import read_stdin
from ..terminal.interrupt import Leave
from ..terminal.prompt import Prompt, muted
from ..thinking import check, settle
from ..tuning import Tuning
from . import transcript
from .commands import completions, dispatch, is_command, unescaped
from .dialogue import AGAIN, Dialogue, Looks
from .first_run import choose
from .greeting import greet
from .keeping import tell_loaded
from .room import Room
from .transcript import Chat


@grouped
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
    models: ModelOptions,
    sampling: SamplingOptions,
    asked: PromptOptions,
    markdown: Annotated[
        bool, option("--markdown/--no-markdown", help="Show answers as Markdown.")
    ] = True,
    no_history: Annotated[
        bool, option("--no-history", help="Keep neither prompts nor chats on disk.")
    ] = False,
    screen: ScreenOptions,
) -> None:
    """Chat in the terminal, with tokens/sec and acceptance live.

    /help lists the commands. With standard input redirected it is one prompt: the answer goes to
    stdout and nothing else does.
    """
    out = Output(quiet=screen.quiet, plain=screen.plain)
    if name is not None and not resume:
        raise UsageError(
            f"'{name}' is not expected here.",
            hint=f"--resume {name} goes on with a saved chat; `dflash generate` answers one prompt",
        )
    interactive = sys.stdin is not None and sys.stdin.isatty()
    question = "" if interactive else read_question()
    saved = None
    if resume:
        name = name or latest()
        saved = transcript.load(name)
    params = sampling.params()
    models = pick(ctx, models, saved, out, demo=demo, asks=interactive)
    pair, seconds = load_pair(models, out)
    asked = settle(ctx, asked, pair.target.template, out)
    check(pair.target.template, asked)
    tuning = Tuning(
        params,
        sampling.max_tokens,
        models.block_size,
        models.accept,
        tuple(sampling.stop or ()),
        asked.think,
        asked.effort,
        "auto" if models.mode == "baseline" else models.mode,
        models.tree_budget,
    )
    looks = Looks(markdown, asked.show_thinking, screen.quiet)
    keeps = not no_history and (interactive or resume)
    dialogue = Dialogue(pair, out, tuning=tuning, looks=looks, keeps=keeps)
    dialogue.chat = Chat(system=asked.system)
    room = Room(dialogue, out, models)
    if interactive:
        greet(dialogue, seconds)
    else:
        out.warn(*kernel_warnings(pair.target.kernels))
    if saved is not None and name is not None:
        dialogue.load(name)
        if asked.system is not None:
            dialogue.chat = replace(dialogue.chat, system=asked.system)
        if interactive:
            tell_loaded(room, name, saved)
            room.line("")
    if interactive:
        with muted():
            talk(room, no_history=no_history)
    else:
        answer_once(room, question)


def talk(room: Room, *, no_history: bool) -> None:
    """The loop, until the user leaves; typer.Exit when that was by Ctrl-C twice."""
    history = None if no_history else transcript.data_folder() / "history"
    prompt = Prompt(room.out, lambda text: completions(room, text), history)
    dialogue, code = room.dialogue, 0
    try:
        while True:
            try:
                text = prompt.read()
                dialogue.stopped_at = float("-inf")
                handle(room, text)
            except KeyboardInterrupt:
                room.out.erase()
                now = time.monotonic()
                if now - dialogue.stopped_at <= AGAIN:
                    raise Leave(130) from None
                dialogue.stopped_at = now
                room.line("  Ctrl-C again to leave, or Ctrl-D; /help lists the commands", "dim")
    except EOFError:
        pass
    except Leave as leave:
        code = leave.code
    farewell(room)
    if code:
        raise typer.Exit(code)


def handle(room: Room, text: str) -> None:
    """Run what was typed; what is wrong is told and ends nothing."""
    text = text.strip("\n")  # of Enter typed during the last answer
    if not text.strip():
        return
    try:
        if is_command(text):
            dispatch(room, text)
        else:
            room.line("")
            room.dialogue.ask(unescaped(text).strip())
    except DFlashError as error:
        room.out.error(error.message, error.hint)
    room.line("")


def answer_once(room: Room, question: str) -> None:
    """Answer what came through the pipe."""
    try:
        said = room.dialogue.ask(question)
    except Leave as leave:
        raise typer.Exit(leave.code) from None
    if said.finish_reason == "interrupted":
        raise typer.Exit(130)


def read_question() -> str:
    """Standard input; UsageError when it is empty."""
    text = read_stdin().strip()
    if not text:
        raise UsageError("the prompt is empty.", hint="give it on standard input")
    return text


def latest() -> str:
    """The chat saved last."""
    names = transcript.chat_names()
    if not names:
        raise DFlashError("there is no saved chat yet.", hint="leave --resume out")
    return names[0]


def pick(
    ctx: typer.Context,
    models: ModelOptions,
    saved: Chat | None,
    out: Output,
    *,
    demo: bool,
    asks: bool,
) -> ModelOptions:
    """Which pair: the one asked for, that of the saved chat, or one that suits this machine."""
    models = settle_models(ctx, models)
    if demo:
        if source(ctx, "model") == "COMMANDLINE":
            raise UsageError(
                "--demo and --model name different models.", hint="leave one of them out"
            )
        return replace(models, model=None, draft=None)
    if models.model is None and saved is not None and saved.model not in (None, "bundled"):
        draft = models.draft or (None if models.no_draft else saved.draft)
        return replace(models, model=saved.model, draft=draft)
    if models.model is None and saved is None and models.draft is None:
        return choose(models, out, asks=asks)
    return models


def farewell(room: Room) -> None:
    """Where the chat is, for the next time."""
    if room.dialogue.keeps and room.dialogue.name and room.dialogue.chat.turns:
        room.out.note(f"saved: dflash chat --resume {room.dialogue.name}")
