"""What was asked about thinking, held against what the target's chat template knows.

Knows flags and settings; what a template knows is the engine's to say.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import typer

from .options import PromptOptions, source
from .output import Output
from .tuning import Tuning

if TYPE_CHECKING:
    from dflash_mlx.chat.template import Template

NAMES = {"think": "switch for thinking", "effort": "reasoning effort"}
Asked = TypeVar("Asked", PromptOptions, Tuning)


def check(template: "Template", asked: PromptOptions | Tuning) -> None:
    """UsageError when the template does not know what was asked for."""
    from dflash_mlx.chat.template import TemplateOptions

    template.switches(TemplateOptions(asked.think, asked.effort))


def settle(
    ctx: typer.Context,
    asked: PromptOptions,
    template: "Template",
    out: Output,
    *,
    raw: bool = False,
) -> PromptOptions:
    """What was asked, as far as the template knows it.

    The variables and the config file hold for all models: what a template does not know of them is
    left out, and told. What the command line says stays as it is, and goes before them.
    """
    asides = [name for name in NAMES if source(ctx, name) != "COMMANDLINE"]
    at_odds = asked.think is False and asked.effort is not None
    if raw or (at_odds and len(asides) == 1):
        return replace(asked, **dict.fromkeys(asides))
    return fitting(asked, template, out, asides)


def fitting(
    asked: Asked, template: "Template", out: Output, names: Iterable[str] = tuple(NAMES)
) -> Asked:
    """What was asked, without those of `names` that the template does not know."""
    for name in names:
        value = getattr(asked, name)
        if value is None:
            continue
        known = value in template.efforts if name == "effort" else template.think_switch
        if not known:
            asked = replace(asked, **{name: None})
            out.note(f"  this model's template knows no {NAMES[name]}: it goes its own way")
    return asked


def told_to_think(template: "Template", tuning: Tuning, word: str) -> Tuning:
    """The tuning with thinking on or off, or with an effort; UsageError as `check`."""
    if word in ("on", "off"):
        effort = tuning.effort if word == "on" else None
        wanted = replace(tuning, think=word == "on", effort=effort)
    else:
        on = True if tuning.think is False else tuning.think
        wanted = replace(tuning, think=on, effort=word)
    check(template, wanted)
    return wanted


def state_of(tuning: Tuning) -> str:
    """How answers think, in a few words."""
    words = [{True: "on", False: "off"}[tuning.think]] if tuning.think is not None else []
    words += [f"effort {tuning.effort}"] if tuning.effort else []
    return " · ".join(words) or "as the template has it"
