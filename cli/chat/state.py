"""The state that slash commands act on: conversation, output and model options."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_mlx.options import GenerationOptions, SamplingParams

from ..options import NO_CACHE, CacheOptions, ModelOptions
from ..presets import DECLARED, KEYS, OptionTables
from ..prompt import Attachment
from ..resolve import (
    RECOMMENDED,
    THINKING,
    Resolved,
    check_thinking,
    described,
    drop_unknown_thinking,
    no_recommendation,
    only_recommended,
)
from ..settings import value_of, with_values
from ..terminal import line_editor
from ..terminal.keys import KeyReader, seen_lines
from ..terminal.line_editor import edit_externally
from ..terminal.output import Output, stderr_columns
from ..terminal.render import wrap_hanging
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
        width = max(len(keys) for keys, _ in line_editor.KEYS) + 2
        for keys, effect in line_editor.KEYS:
            self.print_line(f"  {keys:{width}}{effect}")


def shorten(text: str, max_length: int = 50) -> str:
    """The start of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


# A model's recommended sampling in a chat


def offer(dialogue: Dialogue) -> str:
    """The line that offers it; empty where there is none, or somebody has said how to sample."""
    recommended = dialogue.backend.recommended_sampling()
    if not recommended or replace(dialogue.settings.sampling, seed=None) != SamplingParams():
        return ""
    return f"recommended: {described(recommended)} · /set recommended takes it"


def listed(state: ChatState) -> str:
    """The line of `/set`; empty where there is none."""
    recommended = state.dialogue.backend.recommended_sampling()
    if not recommended:
        return ""
    return f"  recommended: {described(recommended)}; /set recommended takes it"


def take(state: ChatState) -> None:
    """`/set recommended`: just that, the seed apart; DFlashError where there is none."""
    dialogue = state.dialogue
    recommended = dialogue.backend.recommended_sampling()
    if not recommended:
        raise no_recommendation(dialogue.backend)
    sampling = replace(dialogue.settings.sampling, **only_recommended(recommended))
    dialogue.settings = replace(dialogue.settings, sampling=sampling)
    state.print_line(f"  sampling as recommended: {described(recommended)}", "dim")


# Many settings of a chat at once, by the names of options


def chat_settings(options: GenerationOptions) -> GenerationOptions:
    """The settings that a chat begins with; that nothing is drafted is not one of them."""
    return replace(options, mode="auto") if options.mode == "baseline" else options


def values_of(resolved: Resolved) -> dict[str, Any]:
    """The values that a chat with these options begins with, before the target's defaults."""
    names = [name for name in KEYS if name != "model" and name in resolved.general]
    values = {name: resolved.general[name] for name in names}
    return values | {"stop": tuple(values["stop"] or ())}


def present_values(state: ChatState) -> dict[str, Any]:
    """The values that the next answer has."""
    dialogue = state.dialogue
    values = {one.name: value_of(dialogue.settings, one) for one in DECLARED.values()}
    return values | {
        "mode": dialogue.backend.options(dialogue.settings).mode,
        "system": dialogue.chat.system,
        "show_thinking": dialogue.display.show_thinking,
    }


def chat_values(settings: GenerationOptions, values: dict[str, Any]) -> GenerationOptions:
    """The settings with those of the values that are theirs; UsageError for one out of range."""
    own = {name: value for name, value in values.items() if name in DECLARED}
    if own.get("mode") == "baseline":
        del own["mode"]
    if own.get("think") is False:
        own.setdefault("reasoning_effort", None)
    elif own.get("reasoning_effort") and settings.think is False:
        own.setdefault("think", True)
    return with_values(settings, own)


def apply_values(state: ChatState, values: dict[str, Any]) -> None:
    """Answer with these values from now on; UsageError, and nothing changed, for wrong ones."""
    dialogue = state.dialogue
    template = dialogue.backend.template
    settings = chat_values(dialogue.settings, values)
    named = [name for name in THINKING if name in values]
    settings = drop_unknown_thinking(settings, template, state.out, named)
    check_thinking(template, settings)
    dialogue.settings = settings
    if "show_thinking" in values:
        dialogue.display = replace(dialogue.display, show_thinking=values["show_thinking"])
    if "mode" in values and dialogue.backend.local:
        drafting = values["mode"] != "baseline" and dialogue.pair.drafts
        if drafting != dialogue.backend.drafting:
            dialogue.set_pair(dialogue.pair, drafting=drafting)
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
    recommended = state.dialogue.backend.recommended_sampling()
    return {n: value for n, value in recommended.items() if n in state.general} | defaults


def change_defaults(state: ChatState, defaults: dict[str, Any]) -> None:
    """Go over to the defaults of another target, but for what was changed in the chat."""
    defaults = recommended_defaults(state, defaults)
    present = present_values(state)
    before = {**state.general, **state.defaults}
    after = {**state.general, **defaults}
    names = [name for name in (*state.defaults, *defaults) if present[name] == normal(before[name])]
    state.defaults = defaults
    apply_values(state, {name: after[name] for name in names})


def normal(value: Any) -> Any:
    """A value as the settings hold it."""
    return tuple(value) if isinstance(value, list) else value
