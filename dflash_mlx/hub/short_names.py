"""Short names of the registry's targets: `qwen3:4b`, `Qwen3-4B`, `qwen-3-4b-8bit`.

A short name says every word of one target's name, in their order; owner, case, the signs between
words, the words that tell no sizes apart and the form of the weights may be left out.
"""

import difflib
import re
from collections.abc import Callable
from pathlib import Path

from .cache import cached_state
from .registry import Entry, entries, find

WORDS = re.compile(r"a\d+b(?![a-z\d])|\d+(?:\.\d+)*[a-z]*|[a-z]+")
OPTIONAL = re.compile(r"instruct|it|a\d+b")  # the last: active parameters of a mixture of experts
SUGGESTIONS = 3


def words(name: str) -> list[str]:
    """The words and numbers of a name, without its owner: ["qwen", "3", "4b"]."""
    return WORDS.findall(name.rpartition("/")[2].lower())


def forms() -> list[list[Entry]]:
    """The known targets, each with all forms of its weights, the published ones first."""
    found: list[list[Entry]] = []
    for entry in {entry.target: entry for entry in entries()}.values():
        if entry.quant:
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


def usual(model: list[Entry]) -> Entry:
    """The form that a name without one means: the quantised one of the fewest bits, if any."""
    return next((entry for entry in model if entry.quantised), model[0])


def meant(name: str) -> list[Entry]:
    """The entries that a short name can mean: of one target the forms of its weights, or the one
    form that the name says. Empty where no target, or more than one, has such a name.
    """
    said, found = words(name), []
    for model in forms():
        own = words(model[0].target)
        if says(said, own):
            found.append(model)
            continue
        for entry in model[1:]:
            if says(said, own + words(entry.quant)) or says(said, words(entry.target)):
                found.append([entry])
    return found[0] if len(found) == 1 else []


def says(said: list[str], own: list[str]) -> bool:
    """Whether the words that were said are a model's own, but for optional ones."""
    return said == [word for word in own if word in said or not OPTIONAL.fullmatch(word)]


def find_target(name: str, state_of: Callable[[str], str] = cached_state) -> str | None:
    """The Hub id of the one target that a name means; None where that is open, and for a folder.

    A whole id may differ in case. Of a target's forms the one that is downloaded counts; without a
    download the quantised one of the fewest bits, else the published one. `state_of` is as
    `cache.cached_state`.
    """
    if name.startswith((".", "~", "/")) or Path(name).exists():
        return None
    if "/" in name:
        entry = find(name)
        return entry.target if entry else None
    model = meant(name)
    downloaded = [entry.target for entry in model if state_of(entry.target) == "yes"]
    if len(downloaded) > 1 or not model:
        return None
    return downloaded[0] if downloaded else usual(model).target


def similar_targets(name: str) -> list[str]:
    """The Hub ids that a short or misspelt name may mean, at most three, the nearest first."""
    if model := meant(name):
        model = sorted(model, key=lambda entry: not entry.quantised)
        return [entry.target for entry in model[:SUGGESTIONS]]
    known = {" ".join(words(model[0].target)): usual(model).target for model in forms()}
    text = " ".join(words(name))
    begins = [name for name in known if text and name.startswith(text)]
    near = difflib.get_close_matches(text, known, n=SUGGESTIONS, cutoff=0.7)
    return [known[name] for name in dict.fromkeys(begins + near)][:SUGGESTIONS]


def did_you_mean(name: str) -> str:
    """A question with the nearest known targets; empty without any."""
    targets = similar_targets(name)
    return f"did you mean {' or '.join(targets)}?" if targets else ""
