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


def meant(name: str) -> list[Entry]:
    """The entries that a short name can mean: of one target the forms of its weights, or the one
    form that the name says. Empty where no target, or more than one, has such a name.
    """
    said = words(name)
    models: dict[str, list[Entry]] = {}  # by published target
    published = ""
    for entry in {entry.target: entry for entry in entries()}.values():
        if not entry.quant:
            published = entry.target
        form = words(entry.quant)
        own = words(published)
        if says(said, own):
            models.setdefault(published, []).append(entry)
        elif form and (says(said, own + form) or says(said, words(entry.target))):
            models[published] = [entry]
    return next(iter(models.values())) if len(models) == 1 else []


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
    forms = meant(name)
    downloaded = [entry for entry in forms if state_of(entry.target) == "yes"]
    if len(downloaded) > 1:
        return None
    quantised = [entry for entry in forms if entry.quantised]
    return next((entry.target for entry in downloaded + quantised + forms), None)


def similar_targets(name: str) -> list[str]:
    """The Hub ids that a short or misspelt name may mean, at most three, the nearest first."""
    if forms := meant(name):
        return [entry.target for entry in forms][:SUGGESTIONS]
    published = {" ".join(words(e.target)): e.target for e in entries() if not e.quant}
    text = " ".join(words(name))
    near = difflib.get_close_matches(text, published, n=SUGGESTIONS, cutoff=0.7)
    begins = [known for known in published if text and known.startswith(text)]
    return [published[known] for known in dict.fromkeys(begins + near)][:SUGGESTIONS]


def did_you_mean(name: str) -> str:
    """A question with the nearest known targets; empty without any."""
    targets = similar_targets(name)
    return f"did you mean {' or '.join(targets)}?" if targets else ""
