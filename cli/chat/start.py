"""Reads what a chat begins with: its options, the saved chat, the first prompt."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from dflash_mlx.address import is_address, parse_address
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.programs import full_name, server_of
from dflash_mlx.hub.local import find_model

from ..first_model import offer_models
from ..loading import choose_pair, prepare_libraries
from ..options import BUNDLED, Options, flag
from ..presets import PresetName
from ..prompt import read_prompt
from ..resolve import given_local, resolve_target, with_preset
from ..serve import served_name
from ..sources import ValueSource
from ..terminal.output import NotifyKind, Output
from ..terminal.signals import terminal_as_stdin
from ..terminal.spinner import Spinner
from . import transcript
from .chat_file import forget_mark, unfinished_chat
from .transcript import Chat

EMPTY_HINT = "give it as an argument or on standard input, or start the chat in a terminal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    resume: bool = flag(
        False,
        "--resume",
        "Continue a saved chat: NAME, or the latest.",
        "Prompt and answer",
        variable=False,
    )
    latest: bool = flag(
        False,
        "--continue -c",
        "Continue the chat that was saved last.",
        "Prompt and answer",
        variable=False,
    )
    demo: bool = flag(
        False,
        "--demo",
        "Chat with the bundled model; nothing is downloaded.",
        "Model",
        variable=False,
    )
    preset: PresetName = None
    markdown: bool = flag(True, "--markdown/--no-markdown", "Show answers as Markdown.", "Output")
    no_history: bool = flag(
        False, "--no-history", "Keep neither prompts nor chats on disk.", "Output"
    )
    notify: NotifyKind = flag(
        "auto",
        "--notify",
        "Tell when an answer of 20 seconds or more is ready: by the bell, or by a "
        "notification (OSC 9). auto notifies where the terminal is known to show it.",
        "Output",
    )
    mcp: list[Path] | None = flag(
        None,
        "--mcp FILE.json",
        "Start the MCP servers in this file (Claude Desktop's format); repeatable.",
        "Prompt and answer",
        variable=False,
    )


def read_words(
    words: list[str], *, resume: bool, latest: bool, piped: bool
) -> tuple[str | None, str]:
    """The name of a saved chat and the first prompt; UsageError for words that do not fit.

    resume: the first word is a chat; without words the latest chat is meant. latest: the latest
    chat, and words are a prompt. piped: standard input is part of the prompt, or all of it.
    """
    words = [*words]
    name = None
    if resume or latest:
        name = words.pop(0) if resume and words else transcript.latest_chat_name()
    if len(words) > 1:
        raise UsageError(
            f"'{words[1]}' is not expected here.", hint="put the first prompt in quotes"
        )
    prompt = ""
    if words or piped:
        prompt = read_prompt(words[0] if words else None, empty_hint=EMPTY_HINT)
    return name, prompt.strip()


def offer_unfinished(out: Output, *, can_ask: bool) -> str | None:
    """Offer to continue the chat whose program ended in the middle of an answer.

    Returns its name after a yes. After a no it is not offered again. Without `can_ask` a line says
    how to continue it, and the next start offers it.
    """
    name = unfinished_chat()
    if name is None:
        return None
    command = f"dflash chat --resume {shlex.quote(name)}"
    ended = f"Your last chat, '{name}', ended in the middle of an answer."
    if not can_ask:
        out.warn(f"{ended} `{command}` continues it.")
        return None
    out.info(ended)
    question = "Continue it? (/retry then answers the last prompt again)"
    if typer.confirm(question, default=True, err=True):
        return name
    forget_mark(name)
    out.info(f"It is saved: {command}", "dim", wraps=False)
    return None


def offer_server(options: Options, out: Output) -> Options:
    """Offer to use the server of this machine that has the model of a chat loaded.

    Returns the options with its address as the model after a yes. Nothing is asked if the server
    needs a key or does not answer, and if options are given that need a model on this machine.
    """
    asked = options.model
    if asked.model in (None, BUNDLED) or is_address(asked.model) or asked.adapter:
        return options
    prepare_libraries(offline=asked.offline)
    model = find_model(asked.model, asked.folders) or asked.model
    url = server_of(full_name(model))
    if url is None or any(source >= ValueSource.PRESET for _, source in given_local(options)):
        return options
    from dflash_mlx.remote.session import connect, request_fields

    try:
        with Spinner(out, f"asking {url}"):
            server = connect(parse_address(f"{url}/v1#{served_name(model, asked.folders)}"))
        request_fields(server.kind, options.generation)
    except DFlashError as error:
        out.note(f"the server at {url} has this model loaded, but is not used: {error.message}")
        return options
    where = url.partition("://")[2]
    question = f"dflash serve at {where} has this model loaded. Use it?"
    if not typer.confirm(question, default=True, err=True):
        return options
    return options.changed(model=server.target_name)


def choose_target(
    options: Options, saved: Chat | None, out: Output, *, demo: bool, interactive: bool
) -> Options:
    """The options with the pair to load.

    The bundled pair for --demo, else the pair of the options, of the saved chat, or one that suits
    this machine. If none is here, an interactive chat offers to download one.
    """
    if demo:
        return options.changed(model=None, draft=None)
    if options.model.model == BUNDLED:
        return options.changed(model=None)
    if saved is not None:
        return with_saved_pair(options, saved)
    if options.model.model is None and options.model.draft is None:
        chosen = choose_pair(options.model, out, interactive=interactive)
        if interactive and chosen.model is None:
            chosen = offer_models(chosen, out)
        return options.changed(model=chosen.model, draft=chosen.draft)
    return options


def with_saved_pair(options: Options, saved: Chat) -> Options:
    """The options with the pair of a saved chat, unless they name a target."""
    asked = options.model
    if asked.model is not None or saved.model in (None, BUNDLED):
        return options
    draft = asked.draft or (None if asked.no_draft else saved.draft)
    return options.changed(model=saved.model, draft=draft)


@dataclass(frozen=True, slots=True)
class Start:
    """All that is known of a chat before its model is loaded.

    options: those without the defaults of the target. name, saved: of the chat to continue.
    prompt: the first one; `piped`: some of it is from standard input. interactive: whether the
    user can type at a terminal.
    """

    own: ChatOptions
    options: Options
    name: str | None
    saved: Chat | None
    prompt: str
    piped: bool
    interactive: bool
    no_history: bool


def read_start(options: Options, words: list[str], own: ChatOptions, out: Output) -> Start:
    piped = sys.stdin is None or not sys.stdin.isatty()
    options = with_preset(options, own.preset)
    name, prompt = read_words(words, resume=own.resume, latest=own.latest, piped=piped)
    interactive = not piped or (out.stdout_is_tty and terminal_as_stdin())
    can_ask = not piped and sys.stderr.isatty()
    no_history = own.no_history
    if interactive and not no_history:
        try:
            transcript.data_folder(must_be_writable=True)
        except DFlashError as error:
            out.warn(f"{error.message} Nothing of this chat is kept; {error.hint}")
            no_history = True
    if name is None and not no_history:
        name = offer_unfinished(out, can_ask=can_ask and not prompt)
    saved = None if name is None else transcript.load(name)

    def choose(options: Options) -> Options:
        options = choose_target(options, saved, out, demo=own.demo, interactive=interactive)
        return offer_server(options, out) if can_ask and not out.quiet else options

    options = resolve_target(options, out, choose)
    if no_history and options.cache.cache_disk:
        out.warn("nothing of this chat is kept on disk, so --cache-disk is off")
        options = options.changed(cache_disk=0)
    return Start(own, options, name, saved, prompt, piped, interactive, no_history)
