"""Whether a drafter was made for the weights of its target, by their names.

Shapes do not tell: a drafter for DeepSeek-V4-Flash loads with DeepSeek-V4-Flash-0731, and 3 % of
its drafts are accepted.
"""

import re
from typing import Any

from .registry import entries, find, words

DATE = re.compile(r"\d{4}|\d{6}|\d{8}")


def other_weights(target: str, draft: str, config: dict[str, Any]) -> str:
    """A sentence if a drafter was made for other weights than the target's; empty otherwise.

    target, draft: Hub ids or folders. config: the drafter's. Nothing is said where nothing is
    known: the target may be a copy or a fine-tune of the one that the drafter was made for.
    """
    made_for = targets_of(draft, config)
    if not made_for or any(may_be_same(target, name) for name in made_for):
        return ""
    return (
        f"the drafter '{draft}' was made for {' and '.join(made_for)}, whose weights are not those "
        f"of '{target}': its drafts may nearly all be refused"
    )


def targets_of(draft: str, config: dict[str, Any]) -> list[str]:
    """The published targets that a drafter was made for: by the registry, else by its config."""
    known = [entry.published for entry in entries() if entry.draft.lower() == draft.lower()]
    if known:
        return list(dict.fromkeys(known))
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return [name] if isinstance(name, str) and name.count("/") == 1 else []


def may_be_same(target: str, other: str) -> bool:
    """By the published ids of targets in the registry; of others only a date in the name tells."""
    entries = find(target), find(other)
    if all(entries):
        return len({entry.published for entry in entries if entry}) == 1
    names = [words(name.rstrip("/")) for name in (target, other)]
    dates = [{word for word in name if DATE.fullmatch(word)} for name in names]
    return not set(names[1]) - dates[1] <= set(names[0]) or dates[0] == dates[1]
