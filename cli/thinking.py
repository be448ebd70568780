"""Checks the thinking flags against the chat template."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import typer

from .chat_settings import ChatSettings
from .option_sources import option_source
from .options import PromptOptions
from .terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx.chat.template import Template

    from .remote import RemoteSwitches

Switches: TypeAlias = "Template | RemoteSwitches"
FIELD_LABELS = {"think": "switch for thinking", "effort": "reasoning effort"}
OptionsT = TypeVar("OptionsT", PromptOptions, ChatSettings)


def check_thinking(template: Switches, options: PromptOptions | ChatSettings) -> None:
    """UsageError when the template does not support the options."""
    template.check(options.think, options.effort)


def resolve_thinking(
    ctx: typer.Context,
    options: PromptOptions,
    template: Switches,
    out: Output,
    *,
    raw: bool = False,
) -> PromptOptions:
    """The options that the template supports.

    Variables and the config file apply to all models, so their unsupported values are dropped with
    a note. Flags on the command line stay as they are and override both.
    """
    inherited = [name for name in FIELD_LABELS if option_source(ctx, name) != "COMMANDLINE"]
    contradictory = options.think is False and options.effort is not None
    if raw or (contradictory and len(inherited) == 1):
        return replace(options, **dict.fromkeys(inherited))
    return drop_unsupported(options, template, out, inherited)


def drop_unsupported(
    options: OptionsT, template: Switches, out: Output, names: Iterable[str] = tuple(FIELD_LABELS)
) -> OptionsT:
    """Drop those of `names` that the template does not support, with a note for each."""
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        supported = value in template.efforts if name == "effort" else template.think_switch
        if not supported:
            options = replace(options, **{name: None})
            out.note(f"  this model's template knows no {FIELD_LABELS[name]}: it goes its own way")
    return options


def with_thinking(template: Switches, settings: ChatSettings, argument: str) -> ChatSettings:
    """The settings with thinking on or off, or with an effort; UsageError if unsupported."""
    if argument in ("on", "off"):
        effort = settings.effort if argument == "on" else None
        changed = replace(settings, think=argument == "on", effort=effort)
    else:
        think = True if settings.think is False else settings.think
        changed = replace(settings, think=think, effort=argument)
    check_thinking(template, changed)
    return changed


def describe_thinking(settings: ChatSettings) -> str:
    """The thinking settings in a few words."""
    parts = [{True: "on", False: "off"}[settings.think]] if settings.think is not None else []
    parts += [f"effort {settings.effort}"] if settings.effort else []
    return " · ".join(parts) or "as the template has it"
