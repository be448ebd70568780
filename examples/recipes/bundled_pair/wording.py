"""How people write: without capitals, without a final mark, with an opening; and invented names."""

from random import Random

from read_words import read_words

PHRASES = read_words("wording")
CODAS = PHRASES["codas"] + [""] * 8
NUMBERS: list[str] = PHRASES["numbers"]


def invented_word(rng: Random, least: int = 1, most: int = 3, english: float = 0.0) -> str:
    """A word that no language has, of so many syllables; a share has an `english` ending."""
    syllables = [
        rng.choice(PHRASES["onsets"]) + rng.choice(PHRASES["vowels"]) + rng.choice(CODAS)
        for _ in range(rng.randint(least, most))
    ]
    ending = rng.choice(PHRASES["endings"]) if rng.random() < english else ""
    return "".join(syllables) + ending


def invented_name(rng: Random) -> str:
    """An invented first name."""
    return invented_word(rng, 1, 2).capitalize()


def loosely(rng: Random, prompt: str) -> str:
    """The prompt as it is, or as people type who are in a hurry or polite."""
    first, _, rest = prompt.partition(" ")
    if rest and first.lower() in PHRASES["starts"] and first != "I":
        if rng.random() < 0.2:
            prompt = f"{first.lower()} {rest}"
        elif rng.random() < 0.05:
            prompt = f"Please {first.lower()} {rest}" if prompt.endswith(".") else prompt
    if rng.random() < 0.2:
        prompt = prompt.rstrip("?.")
    if rng.random() < 0.03:
        prompt += " please" if prompt[-1:].isalnum() else " Please."
    return prompt


def in_any_case(rng: Random, prompt: str) -> str:
    """The prompt as it is, or all in lower case, or, rarely, in capitals."""
    dice = rng.random()
    if dice < 0.2:
        return prompt.lower()
    return prompt.upper() if dice > 0.98 else prompt
