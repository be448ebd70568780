"""Questions outside the toy's world, in many kinds; each has the same honest answer."""

import re
from collections.abc import Callable
from functools import partial
from random import Random

from everyday import CAPITALS, HONEST, HOW_TO, OPENINGS, OPPOSITES, SMALL_TALK, SOUNDS, WHY, YOUNG
from outside_words import fill, framed, phrased, typed
from read_words import read_words
from sample import Sample

PHRASES = read_words("outside")
ASKED = PHRASES["kinds"]
NEAR = list(PHRASES["near"].values())
WITHOUT_FRAME = ("foreign", "gibberish")  # no English sentence goes with them
AN = re.compile(r"\b([Aa]) (?=[aeiou])(?!us|uni|eu|one)")  # takes "an", not "a"
KNOWN_PHRASES = (
    *(f"{ask} {what}" for what in HOW_TO for ask in ("do i", "can i", "to")),
    *(question.lower().rstrip("?") for question in WHY),
    *(f"capital of {country.lower()}" for country in CAPITALS),
    *(f"capital {city.lower()}" for city in CAPITALS.values()),
    *(f"opposite of {word}" for pair in OPPOSITES.items() for word in pair),
    *(f"young {animal}" for animal in YOUNG),
    *(f"sound does a {animal}" for animal in SOUNDS),
    *(f"a {animal} say" for animal in SOUNDS),
)
GREETINGS = {greeting.lower().rstrip("!?.") for greeting in SMALL_TALK}


def is_known(prompt: str) -> bool:
    """Whether the toy could answer it, as it has a question of everyday.py in it."""
    text = prompt.lower()
    return text.rstrip("!?. ") in GREETINGS or any(phrase in text for phrase in KNOWN_PHRASES)


def prompt_of(kind: str, rng: Random) -> str:
    """A prompt of this kind that the toy cannot answer."""
    while True:
        templates = rng.choice(NEAR) if kind == "near_miss" else ASKED[kind]
        prompt = fill(rng, rng.choice(templates))
        if not is_known(prompt):
            break
    if kind not in WITHOUT_FRAME:
        prompt = phrased(rng, prompt[0].upper() + prompt[1:])
        prompt = AN.sub(r"\1n ", framed(rng, prompt, ASKED["statement"]))
    prompt = typed(rng, prompt)
    return f"{rng.choice(OPENINGS)} {prompt}" if rng.random() < 0.2 else prompt


KINDS: dict[str, Callable[[Random], str]] = {
    kind: partial(prompt_of, kind) for kind in (*ASKED, "near_miss")
}
UNSEEN = ("riddle", "law", "film", "role_play", "travel")  # training never has these
SEEN = [kind for kind in KINDS if kind not in UNSEEN]
SHARES = [{"near_miss": 6, "hard_math": 2, "naming": 2}.get(kind, 1) for kind in SEEN]


def outside_kind(rng: Random, kind: str) -> Sample:
    """A question of one kind."""
    return Sample("outside", KINDS[kind](rng), "I do not know this.", HONEST, HONEST)


def outside(rng: Random) -> Sample:
    """A random question of a kind that training has."""
    return outside_kind(rng, rng.choices(SEEN, SHARES)[0])
