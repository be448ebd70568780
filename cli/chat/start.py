"""What a chat begins with: the pair, the saved chat, the first prompt, a place to save."""

from dataclasses import dataclass

from dflash_mlx.errors import DFlashError, UsageError

from ..loading import choose_pair
from ..options import ModelOptions, OptionValues, Origin
from ..presets import BUNDLED
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


def choose_target(
    values: OptionValues, saved: Chat | None, out: Output, *, demo: bool, interactive: bool
) -> OptionValues:
    """The values with the bundled pair for --demo, else with the pair that is named, that of the
    saved chat, or one that suits this machine.
    """
    if demo and values.origin("model") is Origin.FLAG:
        raise UsageError("--demo and --model name different models.", hint="leave one of them out")
    if demo or values["model"] == BUNDLED:
        return values.changed(model=None, draft=None)
    if saved is not None:
        return with_saved_pair(values, saved)
    if values["model"] is None and values["draft"] is None:
        chosen = choose_pair(values.group(ModelOptions), out, interactive=interactive)
        return values.changed(model=chosen.model)
    return values


def with_saved_pair(values: OptionValues, saved: Chat) -> OptionValues:
    """The values with the pair of a saved chat, where none is named."""
    if values["model"] is not None or saved.model in (None, BUNDLED):
        return values
    draft = values["draft"] or (None if values["no_draft"] else saved.draft)
    return values.changed(model=saved.model, draft=draft)


def can_keep_history(out: Output) -> bool:
    """Whether chats and prompts can be kept on disk; says why they cannot."""
    try:
        transcript.check_data_folder()
    except DFlashError as error:
        out.warn(f"{error.message} Nothing of this chat is kept; {error.hint}")
        return False
    return True
