"""How people write: without capitals, without a final mark, with an opening; and invented names."""

from random import Random

ONSETS = "b d f g h j k l m n p r s t v z br dr gr kl pl sh st tr".split()
VOWELS = "a e i o u ai ea oo".split()
CODAS = "n r l s t m k x nd rt".split() + [""] * 8
ENDINGS = "er y le ish ion ity ous ant ine oid ment ia o a um on us ax el".split()
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
STARTS = frozenset(
    "what what's how add subtract multiply divide calculate can if give work solve tell compute "
    "sort put reverse say count which keep is there write please i in take share show find "
    "why name do does who where when pick choose".split()
)


def invented_word(rng: Random, least: int = 1, most: int = 3, english: float = 0.0) -> str:
    """A word that no language has, of so many syllables; a share has an `english` ending."""
    syllables = [
        rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
        for _ in range(rng.randint(least, most))
    ]
    ending = rng.choice(ENDINGS) if rng.random() < english else ""
    return "".join(syllables) + ending


def invented_name(rng: Random) -> str:
    """An invented first name."""
    return invented_word(rng, 1, 2).capitalize()


def loosely(rng: Random, prompt: str) -> str:
    """The prompt as it is, or as people type who are in a hurry or polite."""
    first, _, rest = prompt.partition(" ")
    if rest and first.lower() in STARTS and first != "I":
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


def english(number: int) -> str:
    """A number from 0 to 100 in words."""
    if number == 100:
        return "one hundred"
    if number < 20:
        return ONES[number]
    return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")
