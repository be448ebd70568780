"""Words for questions outside the toy's world, words that do not exist, and how people ask."""

import re
from collections.abc import Callable, Sequence
from random import Random

from arithmetic import NAMES, THINGS
from everyday import CAPITALS, DAYS, MONTHS, OPPOSITES, SOUNDS, YOUNG
from read_words import read_words
from wording import invented_word

INVENTED = 0.22  # share of the slots that get an invented word
SLOT = re.compile(r"\{(\w+)\}")
PHRASES = read_words("outside_words")
TABLES = PHRASES["tables"]
KNOWN = {
    "name": NAMES,
    "thing": THINGS,
    "day": DAYS,
    "month": MONTHS,
    "known_country": list(CAPITALS),
    "known_city": list(CAPITALS.values()),
    "known_animal": sorted({*SOUNDS, *YOUNG}),
    "known_word": [*OPPOSITES, *OPPOSITES.values()],
    "sound": list(SOUNDS.values()),
    "young": list(YOUNG.values()),
}
TABLES["country"] = [c for c in TABLES["country"] if c not in CAPITALS]
TABLES["city"] = [c for c in TABLES["city"] if c not in CAPITALS.values()]
TABLES["opposite"] = [w for w in TABLES["opposite"] if w not in KNOWN["known_word"]]
EVERY_ANIMAL = [*TABLES["animal"], "wolf", "fox", "mouse", "goose", "goat", "hen", "bear", "deer"]
TABLES["silent"] = [a for a in EVERY_ANIMAL if a not in SOUNDS]
TABLES["childless"] = [a for a in [*EVERY_ANIMAL, "lion", "bee", "owl"] if a not in YOUNG]

IMPERATIVE = re.compile(
    r"(Add|Compare|Compose|Correct|Describe|Define|Draw|Explain|Find|Fix|Give|Invent|List|Make|"
    r"Name|Order|Open|Paraphrase|Pick|Plan|Play|Rewrite|Show|Solve|Suggest|Summarise|Tell|"
    r"Translate|Write) "
)


def invented(rng: Random) -> str:
    """A word that does not exist, now and then with an English ending."""
    return invented_word(rng, english=0.3)


def letters(rng: Random, low: int = 4, high: int = 12) -> str:
    """Random keys, as someone hits them."""
    keys = rng.choice(("abcdefghijklmnopqrstuvwxyz", "asdfghjkl", "qwertzuiop", "xyz0123456789"))
    return "".join(rng.choice(keys) for _ in range(rng.randint(low, high)))


def spelt(rng: Random) -> str:
    """An English word of the tables, for questions about words."""
    return rng.choice(TABLES[rng.choice(("object", "topic", "adjective", "animal", "food", "job"))])


def third(verb: str) -> str:
    """The form of a verb that goes with he, she and it."""
    if verb.endswith("y") and verb[-2] not in "aeou":
        return f"{verb[:-1]}ies"
    return f"{verb}es" if verb.endswith(("ch", "sh", "x")) else f"{verb}s"


MAKERS: dict[str, Callable[[Random], str]] = {
    "word": invented,
    "Word": lambda rng: invented(rng).capitalize(),
    "entry": lambda rng: spelt(rng) if rng.random() < 1 - INVENTED else invented(rng),
    "place": lambda rng: f"{{{rng.choice(('country', 'city', 'known_country', 'known_city'))}}}",
    "person": lambda rng: rng.choice(("{first} {last}", "{famous}", "{Word} {Word}")),
    "full": lambda rng: rng.choice(("{first} {last}", "{first} {Word}", "{Word} {last}")),
    "why": lambda rng: f"w{rng.choice(TABLES['other_why'])[1:]}",
    "n": lambda rng: str(rng.randint(2, 99)),
    "over": lambda rng: str(rng.randint(13, 99)),
    "hundreds": lambda rng: str(rng.randint(100, 999)),
    "big": lambda rng: str(rng.randint(1000, 10 ** rng.randint(4, 7))),
    "digits": lambda rng: str(rng.randint(10, 10 ** rng.randint(2, 10))),
    "decimal": lambda rng: f"{rng.randint(0, 99)}.{rng.randint(1, 99)}",
    "fraction": lambda rng: f"{rng.randint(1, 9)}/{rng.randint(2, 12)}",
    "prime": lambda rng: str(rng.choice((7, 11, 13, 17, 19, 23))),
    "year": lambda rng: str(rng.randint(900, 2030)),
    "time": lambda rng: f"{rng.randint(1, 12)}:{rng.randrange(60):02}",
    "clock": lambda rng: f"{rng.randint(0, 23):02}:{rng.randrange(60):02}:{rng.randrange(60):02}",
    "keys": letters,
    "hex": lambda rng: f"{rng.getrandbits(40):x}",
    "letter": lambda rng: rng.choice("ABCDEFGHIJKLMNOPRSTUVW"),
    "count": lambda rng: rng.choice("two three four five six seven ten twelve 3 4 5 10".split()),
    "text": lambda rng: " ".join(["{sentence}"] * rng.choice((1, 1, 2, 2, 3, 3, 8))),
    "series": lambda rng: ", ".join(["{n}"] * rng.randint(3, 7)),
    "verbs": lambda rng: third(rng.choice(TABLES["verb"])),
    "line": lambda rng: "\n",
    "bar": lambda rng: "|",
}  # fmt: skip


def value(rng: Random, slot: str) -> str:
    """A word for a slot; it may have slots itself."""
    if slot in MAKERS:
        return MAKERS[slot](rng)
    if slot in KNOWN:
        return rng.choice(KNOWN[slot])
    table = TABLES[slot]
    if slot not in PHRASES["always_real"] and rng.random() < INVENTED:
        word = invented(rng)
        return word.capitalize() if table[0][0].isupper() else word
    return rng.choice(table)


def fill(rng: Random, template: str) -> str:
    """The template with a word in each slot; equal slots that end in a digit get equal words."""
    kept: dict[str, str] = {}

    def chosen(match: re.Match[str]) -> str:
        slot = match[1]
        if slot[-1].isdigit():
            return kept.setdefault(slot, value(rng, slot[:-1]))
        return value(rng, slot)

    while SLOT.search(template):
        template = SLOT.sub(chosen, template)
    return template


def lowered(text: str) -> str:
    """The text as it goes on in a sentence; I and names in capitals stay."""
    return text if text[1:2] in "' " or text[1:2].isupper() else text[0].lower() + text[1:]


def phrased(rng: Random, prompt: str) -> str:
    """The same request with contractions, or more politely."""
    if rng.random() < 0.3:
        for long, short in PHRASES["short_forms"]:
            prompt = prompt.replace(long, short)
    if rng.random() < 0.15 and "\n" not in prompt:
        if IMPERATIVE.match(prompt) and ". " not in prompt:
            return rng.choice(PHRASES["asking"]).format(lowered(prompt.rstrip(".")))
        if prompt.endswith("?") and prompt.startswith(("W", "H", "Is", "Do")):
            return rng.choice(PHRASES["wondering"]).format(lowered(prompt))
    return prompt


def framed(rng: Random, prompt: str, talk: Sequence[str]) -> str:
    """The request with sentences before or after it: mostly none, now and then much talk."""
    roll = rng.random()
    before = after = ""
    if roll < 0.03:
        before = " ".join(rng.choice(talk) for _ in range(rng.randint(3, 12)))
    elif roll < 0.11:
        before = rng.choice(PHRASES["before"])
    if 0.09 < roll < 0.17:
        after = rng.choice(PHRASES["after"])
    return " ".join(part for part in (fill(rng, before), prompt, fill(rng, after)) if part)


def typed(rng: Random, prompt: str) -> str:
    """The text as people type it: not always with capitals, a last full stop or the right keys."""
    roll = rng.random()
    if roll < 0.15:
        prompt = prompt.lower()
    elif roll < 0.17:
        prompt = prompt.upper()
    if rng.random() < 0.2:
        prompt = prompt.rstrip(".?!") or prompt
    elif rng.random() < 0.02:
        prompt += rng.choice(("?", "!", "...", " please", " pls", " thx"))
    if rng.random() < 0.04 and len(prompt) > 8:
        at = rng.randrange(1, len(prompt) - 2)
        swapped = prompt[at + 1] + prompt[at]
        prompt = prompt[:at] + rng.choice((swapped, prompt[at], prompt[at] * 2)) + prompt[at + 2 :]
    return prompt
