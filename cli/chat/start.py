"""What a chat begins with: the pair, the saved chat, the first prompt, a place to save."""

from dataclasses import dataclass, replace

import typer

from dflash_mlx.errors import DFlashError, UsageError

from ..first_run import choose_pair
from ..model_names import BUNDLED, with_known_target
from ..modes import resolve_models
from ..option_sources import option_source
from ..options import ModelOptions
from ..prompt import read_prompt
from ..terminal.output import Output
from . import transcript
from .transcript import Chat


@dataclass(frozen=True, slots=True)
class Beginning:
    """The saved chat to go on with, and the first prompt; either may be missing.

    `piped`: some of the prompt came from standard input.
    """

    name: str | None = None
    prompt: str = ""
    piped: bool = False


def read_beginning(words: list[str], *, resume: bool, latest: bool, piped: bool) -> Beginning:
    """What the arguments and standard input say; UsageError when they do not fit the flags.

    `resume`: the first word is a chat, the latest one without words. `latest`: that chat, whatever
    the words say. `piped`: standard input is part of the prompt, or all of it.
    """
    if resume and latest:
        raise UsageError(
            "--resume and --continue name different chats.", hint="leave one of them out"
        )
    words = [*words]
    name = None
    if resume or latest:
        name = words.pop(0) if resume and words else latest_chat_name()
    if len(words) > 1:
        raise UsageError(
            f"'{words[1]}' is not expected here.", hint="put the first prompt in quotes"
        )
    prompt = read_prompt(words[0] if words else None) if words or piped else ""
    return Beginning(name, prompt.strip(), piped)


def latest_chat_name() -> str:
    """The name of the chat saved last."""
    names = transcript.chat_names()
    if not names:
        raise DFlashError("there is no saved chat yet.", hint="leave --resume and --continue out")
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
    if demo or model_options.model == BUNDLED:
        if demo and option_source(ctx, "model") == "COMMANDLINE":
            raise UsageError(
                "--demo and --model name different models.", hint="leave one of them out"
            )
        return replace(model_options, model=None, draft=None)
    model_options = with_known_target(model_options, out)
    if saved is not None:
        return with_saved_pair(model_options, saved)
    if model_options.model is None and model_options.draft is None:
        return choose_pair(model_options, out, interactive=interactive)
    return model_options


def with_saved_pair(model_options: ModelOptions, saved: Chat) -> ModelOptions:
    """The options with the pair of a saved chat, where none is named."""
    if model_options.model is not None or saved.model in (None, "bundled"):
        return model_options
    draft = model_options.draft or (None if model_options.no_draft else saved.draft)
    return replace(model_options, model=saved.model, draft=draft)


def can_keep_history(out: Output) -> bool:
    """Whether chats and prompts can be kept on disk; says why they cannot."""
    try:
        transcript.check_data_folder()
    except DFlashError as error:
        out.warn(f"{error.message} Nothing of this chat is kept; {error.hint}")
        return False
    return True
