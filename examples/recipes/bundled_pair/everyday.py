"""Short everyday questions: facts, greetings, how-to steps."""

import re
from collections.abc import Sequence
from random import Random

from read_words import read_words
from sample import Sample

PHRASES = read_words("everyday")
HONEST, OPENINGS, SMALL_TALK = PHRASES["honest"], PHRASES["openings"], PHRASES["small_talk"]
HOW_TO, WHY = PHRASES["how_to"], PHRASES["why"]
CAPITALS, OPPOSITES = PHRASES["capitals"], PHRASES["opposites"]
SOUNDS, YOUNG = PHRASES["sounds"], PHRASES["young"]
DAYS, MONTHS = PHRASES["days"], PHRASES["months"]
Facts = dict[str, tuple[str, str]]


def neighbours(what: str, word: str, names: Sequence[str], step: int) -> Facts:
    """For each day or month the one after or before it, in a circle."""
    others = {name: names[(i + step) % len(names)] for i, name in enumerate(names)}
    return {
        name: (f"The {what} {word} {name} is {other}.", other) for name, other in others.items()
    }


# What is asked about, with the answer and its short form.
FACTS: dict[str, Facts] = {
    "capital": {k: (f"The capital of {k} is {v}.", v) for k, v in CAPITALS.items()},
    "country": {v: (f"{v} is the capital of {k}.", k) for k, v in CAPITALS.items()},
    "opposite": {
        k: (f"The opposite of {k} is {v}.", v)
        for pair in OPPOSITES.items()
        for k, v in (pair, pair[::-1])
    },
    "sound": {k: (f"The sound that the {k} makes is {v}.", v) for k, v in SOUNDS.items()},
    "young": {k: (f"A young {k} is called a {v}.", v) for k, v in YOUNG.items()},
    "day after": neighbours("day", "after", DAYS, 1),
    "day before": neighbours("day", "before", DAYS, -1),
    "month after": neighbours("month", "after", MONTHS, 1),
    "month before": neighbours("month", "before", MONTHS, -1),
    "count": {
        key: (f"There are {v} {k}.", str(v))
        for k, v in PHRASES["counts"].items()
        for key in (k, k.replace(" in ", " are in "))
    },
    "length": {
        k: (f"There are {v} days in {k}.", str(v))
        for k, v in zip(MONTHS, PHRASES["lengths"], strict=True)
    },
}
GROUPS = (
    ("capital", "capital", "country"),
    ("opposite",),
    ("sound", "young"),
    ("day after", "day before", "month after", "month before", "length", "count"),
)


def with_article(text: str) -> str:
    """The text with "an" in place of "a" before a vowel."""
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def fact(rng: Random) -> tuple[str, str, str]:
    """Ask for a fact of the tables: question, answer, the answer's short form."""
    kind = rng.choice(rng.choice(GROUPS))
    word, (answer, short) = rng.choice(list(FACTS[kind].items()))
    return with_article(rng.choice(PHRASES["questions"][kind]).format(word)), answer, short


def how_to(rng: Random) -> tuple[str, str, str]:
    """Ask for instructions; the answer has four numbered steps."""
    what, steps = rng.choice(list(HOW_TO.items()))
    ask = rng.choice(PHRASES["questions"]["how to"]).format(what)
    lines = [f"{n}. {s[0].upper()}{s[1:]}." for n, s in enumerate(steps, 1)]
    return ask, f"Here is a good way to {what}:\n\n" + "\n".join(lines), ""


def why(rng: Random) -> tuple[str, str, str]:
    """Ask for a reason; the answer has two sentences."""
    question, answer = rng.choice(list(WHY.items()))
    rest = question[0].lower() + question[1:]
    ask = rng.choice(
        (question, f"Tell me: {rest}", f"I wonder, {rest}", f"Do you know? {question}")
    )
    return ask, answer, ""


def small_talk(rng: Random) -> tuple[str, str, str]:
    """Greetings, and questions about the model."""
    ask, answer = rng.choice(list(SMALL_TALK.items()))
    return ask, answer, ""


def casual(rng: Random, text: str) -> str:
    """The text as typed in a hurry: in lower case, without the final mark, or both."""
    way = rng.choice(("lower case", "no end", "both"))
    if way != "no end":
        text = text.lower().replace("'", rng.choice(("'", "")))
    return text if way == "lower case" else text.rstrip(".?!")


def everyday(rng: Random) -> Sample:
    """A random everyday question."""
    kind = rng.choice((fact, fact, fact, fact, how_to, how_to, why, why, small_talk))
    ask, answer, short = kind(rng)
    if rng.random() < 0.6:
        ask = f"{rng.choice(OPENINGS)} {ask}"
    if rng.random() < 0.15:
        ask = casual(rng, ask)
    return Sample("everyday", ask, "This is an easy question.", answer, answer, short)
