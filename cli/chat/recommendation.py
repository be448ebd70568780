"""A model's recommended sampling in a chat: offered, listed by `/set`, and taken."""

from dataclasses import replace

from ..recommended import described, no_recommendation, only_recommended, recommended_by
from .dialogue import Dialogue
from .state import ChatState


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
