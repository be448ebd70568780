"""What a chat begins with: the pair, the saved chat, a prompt from standard input, a place to save.

Knows options and folders; loads no pair and reads no keys.
"""

from dataclasses import replace

import typer

from dflash_mlx.errors import DFlashError, UsageError

from ..first_run import choose_pair
from ..modes import resolve_models
from ..options import ModelOptions, option_source
from ..prompt_input import read_stdin
from ..terminal.output import Output
from . import transcript
from .transcript import Chat


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
