"""The state that slash commands act on: conversation, output and model options."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..cache_options import NO_CACHE, CacheOptions
from ..chat_settings import SAMPLING_FIELDS, ChatSettings
from ..option_tables import OptionTables
from ..options import ModelOptions, PromptOptions, SamplingOptions
from ..prompt import Attachment
from ..recommended import (
    RECOMMENDED,
    described,
    no_recommendation,
    only_recommended,
    recommended_by,
)
from ..terminal.keys import KeyReader, seen_lines
from ..terminal.line_editor import KEYS, edit_externally
from ..terminal.output import Output, stderr_columns
from ..terminal.render import wrap_hanging
from ..thinking import FIELD_LABELS, check_thinking, drop_unsupported
from .dialogue import Dialogue


@dataclass(slots=True)
class ChatState:
    """The conversation, the output and the options of the loaded pair."""

    dialogue: Dialogue
    out: Output
    model_options: ModelOptions
    cache_options: CacheOptions = NO_CACHE
    edit: Callable[[str], str] = edit_externally
    attached: list[str] = field(default_factory=list)  # names of files for the next prompt
    outputs: list[Attachment] = field(default_factory=list)  # of commands, for the next prompt
    tables: OptionTables = field(default_factory=OptionTables)
    # By the names of options: what holds for every target, but for flags, presets and variables;
    # and what the present target's defaults put in its place.
    general: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    sampling_by: str = "given"  # of every target, unless its defaults say otherwise
    keys: KeyReader | None = None  # reads what is typed while a command runs

    @contextmanager
    def terminal_for_others(self) -> Iterator[None]:
        """Inside, another program has the terminal, as a shell would give it."""
        with nullcontext() if self.keys is None else self.keys.paused():
            with seen_lines():
                yield
            if self.keys is not None:
                self.keys.take_echoed()

    def ask_line(self, question: str) -> str:
        """Put a question, and give the line that is typed after it; empty at the end of the input.

        What was typed before the question does not answer it.
        """
        import termios

        with self.terminal_for_others():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
            self.out.info(wrap_hanging(question.rstrip(), stderr_columns()) + " ", end="")
            return os.read(sys.stdin.fileno(), 4096).decode(errors="replace")

    def print_line(self, text: str, style: str = "") -> None:
        """Print one line for the user."""
        self.out.info(wrap_hanging(text, stderr_columns()), style)

    def print_styled(self, line: str) -> None:
        """Print a line with escape sequences for the user, on a terminal that takes them."""
        from rich.text import Text

        self.out.console.print(Text.from_ansi(line), soft_wrap=True)

    def show_keys(self) -> None:
        """Print the keys and what they do."""
        width = max(len(keys) for keys, _ in KEYS) + 2
        for keys, effect in KEYS:
            self.print_line(f"  {keys:{width}}{effect}")


def shorten(text: str, max_length: int = 50) -> str:
    """The start of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


# A model's recommended sampling in a chat


def offer(dialogue: Dialogue) -> str:
    """The line that offers it; empty where there is none, or somebody has said how to sample."""
    found = recommended_by(dialogue.model.source)
    present, plain = dialogue.settings.sampling, type(dialogue.settings.sampling)()
    if not found or replace(present, seed=None) != plain:
        return ""
    return f"recommended: {described(found)} · /set recommended takes it"


def listed(state: ChatState) -> str:
    """The line of `/set`; empty where there is none."""
    found = recommended_by(state.dialogue.model.source)
    return f"  recommended: {described(found)}; /set recommended takes it" if found else ""


def take(state: ChatState) -> None:
    """`/set recommended`: just that, the seed apart; DFlashError where there is none."""
    dialogue = state.dialogue
    found = recommended_by(dialogue.model.source)
    if not found:
        raise no_recommendation(dialogue.model.source)
    sampling = replace(dialogue.settings.sampling, **only_recommended(found))
    dialogue.settings = replace(dialogue.settings, sampling=sampling)
    state.print_line(f"  sampling as recommended: {described(found)}", "dim")


# Many settings of a chat at once, by the names of options

Options = tuple[ModelOptions, SamplingOptions, PromptOptions]


def settings_of(options: Options) -> ChatSettings:
    """The settings that a chat begins with."""
    model_options, sampling_options, prompt_options = options
    return ChatSettings(
        sampling_options.params(),
        sampling_options.max_tokens,
        model_options.block_size,
        model_options.accept,
        tuple(sampling_options.stop or ()),
        prompt_options.think,
        prompt_options.effort,
        "auto" if model_options.mode == "baseline" else model_options.mode,
        model_options.tree_budget,
    )


def values_of(options: Options) -> dict[str, Any]:
    """The values that a chat with these options begins with."""
    model_options, sampling_options, prompt_options = options
    return setting_values(settings_of(options)) | {
        "sampling_by": sampling_options.sampling_by,
        "mode": model_options.mode,
        "system": prompt_options.system,
        "show_thinking": prompt_options.show_thinking,
    }


def present_values(state: ChatState) -> dict[str, Any]:
    """The values that the next answer has."""
    dialogue = state.dialogue
    return setting_values(dialogue.settings) | {
        "mode": dialogue.mode,
        "system": dialogue.chat.system,
        "show_thinking": dialogue.display.show_thinking,
    }


def setting_values(settings: ChatSettings) -> dict[str, Any]:
    """The settings by the names of options."""
    values = asdict(settings)
    sampling = values.pop("sampling")
    return {**values, **sampling, "temp": sampling["temperature"]}


def with_values(settings: ChatSettings, values: dict[str, Any]) -> ChatSettings:
    """The settings with those of the values that are theirs; UsageError for one out of range."""
    values = {**values, "stop": tuple(values.get("stop", settings.stop) or ())}
    if "temp" in values:
        values["temperature"] = values["temp"]
    if values.get("mode") == "baseline":
        del values["mode"]
    if values.get("think") is False:
        values.setdefault("effort", None)
    elif values.get("effort") and settings.think is False:
        values.setdefault("think", True)
    own = asdict(settings).keys() & values.keys()
    sampling = {name: values[name] for name in SAMPLING_FIELDS & values.keys()}
    return replace(
        settings,
        sampling=replace(settings.sampling, **sampling),
        **{name: values[name] for name in own},
    )


def apply_values(state: ChatState, values: dict[str, Any]) -> None:
    """Answer with these values from now on; UsageError, and nothing changed, for wrong ones."""
    dialogue = state.dialogue
    template = dialogue.model.template
    settings = with_values(dialogue.settings, values)
    named = [name for name in FIELD_LABELS if name in values]
    settings = drop_unsupported(settings, template, state.out, named)
    check_thinking(template, settings)
    dialogue.settings = settings
    if "show_thinking" in values:
        dialogue.display = replace(dialogue.display, show_thinking=values["show_thinking"])
    if "mode" in values and dialogue.server is None:
        drafting = values["mode"] != "baseline" and dialogue.pair.drafts
        if drafting != dialogue.drafting:
            dialogue.set_pair(dialogue.pair, drafting=drafting)
    dialogue.use_mode()
    if "system" in values and values["system"] != dialogue.chat.system:
        dialogue.replace_chat(replace(dialogue.chat, system=values["system"]))


def defaults_of(state: ChatState, target: str | None) -> dict[str, Any]:
    """A target's defaults that nothing overrides; DFlashError for a wrong one in the file."""
    table = state.tables.of_model(target)
    return {name: value for name, value in table.items() if name in state.general}


def recommended_defaults(state: ChatState, defaults: dict[str, Any]) -> dict[str, Any]:
    """A target's defaults with what it recommends, where they or the options ask for that.

    The target must be loaded.
    """
    defaults = {**defaults}
    if defaults.pop("sampling_by", state.sampling_by) != RECOMMENDED:
        return defaults
    found = recommended_by(state.dialogue.model.source)
    return {name: value for name, value in found.items() if name in state.general} | defaults


def change_defaults(state: ChatState, defaults: dict[str, Any]) -> None:
    """Go over to the defaults of another target, but for what was changed in the chat."""
    defaults = recommended_defaults(state, defaults)
    present, before = present_values(state), {**state.general, **state.defaults}
    after = {**state.general, **defaults}
    names = [name for name in (*state.defaults, *defaults) if present[name] == normal(before[name])]
    state.defaults = defaults
    apply_values(state, {name: after[name] for name in names})


def normal(value: Any) -> Any:
    """A value as the settings hold it."""
    return tuple(value) if isinstance(value, list) else value
