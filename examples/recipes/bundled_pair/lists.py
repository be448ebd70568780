"""Tasks with lists: sort, reverse, count, filter and pick, item by item."""

import operator
from collections.abc import Callable, Sequence
from random import Random

from read_words import read_words
from sample import Sample
from sums import add
from wording import invented_word, loosely

Task = tuple[str, str, str, str]  # question, steps, conclusion, the result as a word or number

PHRASES = read_words("lists")
WORDS, PLACES = PHRASES["words"], PHRASES["places"]
TOTAL_OF_TWO = tuple(ask for ask in PHRASES["total"] if " list" in ask or "numbers" in ask)


def joined(items: list[str]) -> str:
    """The items as answers write them."""
    return ", ".join(items)


def as_typed(rng: Random, items: list[str], alone: bool = False) -> str:
    """The items as a user types them; on lines of their own only at the end of a question."""
    style = rng.random()
    if style < 0.6:
        return ", ".join(items)
    if style < 0.7:
        return ",".join(items)
    if style < 0.78:
        return " ".join(items)
    if style < 0.85 and len(items) > 1:
        return f"{', '.join(items[:-1])} and {items[-1]}"
    if style < 0.9:
        return f"[{', '.join(items)}]"
    if style < 0.93:
        return f"({', '.join(items)})"
    if style < 0.96 and alone:
        return "\n" + "\n".join(items)
    if style < 0.98:
        return "; ".join(items)
    return ", ".join(items)


def asked(rng: Random, questions: Sequence[str], items: list[str], **fields: str) -> str:
    """One of the questions about the items; {list} may be anywhere in it."""
    question = rng.choice(questions)
    if question.endswith(": {list}") and rng.random() < 0.15:
        question = question.removesuffix(": {list}")
        mark = "?" if question.split()[0] in PHRASES["asking"] else "."
        separator = rng.choice(PHRASES["separators"])
        question = f"{{list}}{separator}{question}{mark}"
    alone = question.endswith(": {list}")
    ask = question.format(list=as_typed(rng, items, alone), **fields).replace(": \n", ":\n")
    return ask[0].upper() + ask[1:] if rng.random() < 0.8 else ask


def some_numbers(rng: Random, low: int = 3, high: int = 7) -> list[int]:
    """Different numbers in random order: from 1 to 99, now and then up to 999."""
    top = 1000 if rng.random() < 0.06 else 21 if rng.random() < 0.1 else 100
    return rng.sample(range(1, top), rng.randint(low, high))


def some_words(rng: Random, low: int = 3, high: int = 7) -> list[str]:
    """Different words; now and then some that were never read before."""
    words: list[str] = rng.sample(WORDS, rng.randint(low, high))
    if rng.random() < 0.15:
        words = list(dict.fromkeys(invented_word(rng) for _ in words))
    while len(words) < low:
        words = list(dict.fromkeys([*words, invented_word(rng, 2, 3)]))
    return words


def some_items(rng: Random, low: int = 3, high: int = 7) -> list[str]:
    """Words or numbers."""
    if rng.random() < 0.5:
        return some_words(rng, low, high)
    return [str(value) for value in some_numbers(rng, low, high)]


def quoted(rng: Random, word: str) -> str:
    """A word as users name it: perhaps in quotes."""
    return rng.choice((word, word, word, f'"{word}"', f"'{word}'"))


def numbered(items: list[str]) -> str:
    """The items with their numbers."""
    return joined([f"{number} {item}" for number, item in enumerate(items, 1)])


def sort(rng: Random) -> Task:
    """Sort numbers in rising or falling order."""
    values = some_numbers(rng)
    falling = rng.random() < 0.35
    way = "from large to small" if falling else "from small to large"
    items = [str(value) for value in values]
    ordered = [str(value) for value in sorted(values, reverse=falling)]
    steps = f"The list has {len(items)} numbers: {joined(items)}. In order {way}: "
    said = rng.choice(PHRASES["falling_ways"] if falling else PHRASES["rising_ways"])
    ask = asked(rng, PHRASES["falling"] if falling else PHRASES["rising"], items, way=said)
    return ask, f"{steps}{joined(ordered)}.", joined(ordered), ""


def sort_words(rng: Random) -> Task:
    """Sort words by the alphabet."""
    words = some_words(rng, 3, 6)
    back = rng.random() < 0.25
    ordered = joined(sorted(words, reverse=back))
    letters = joined([f"{word} {word[0]}" for word in words])
    way = "From Z to A" if back else "In alphabetical order"
    ask = asked(rng, PHRASES["alphabet_back"] if back else PHRASES["alphabet"], words)
    return ask, f"First letters: {letters}. {way}: {ordered}.", ordered, ""


def reverse(rng: Random) -> Task:
    """Say a list backwards."""
    items = some_items(rng)
    back = joined(items[::-1])
    ask = asked(rng, PHRASES["reverse"], items)
    return ask, f"The list is {joined(items)}. From the last to the first: {back}.", back, ""


def join(rng: Random) -> Task:
    """Make one list of two."""
    first, second = some_items(rng, 2, 4), some_items(rng, 2, 4)
    both = joined(first + second)
    brackets = rng.random() < 0.6
    lists = [f"[{joined(items)}]" if brackets else joined(items) for items in (first, second)]
    ask = rng.choice(PHRASES["join"]).format(list=lists[0], second=lists[1])
    steps = f"The first list is {joined(first)}. The second is {joined(second)}. Together: {both}."
    return ask, steps, both, ""


def count(rng: Random) -> Task:
    """Count a word in a list, or all its items."""
    if rng.random() < 0.3:
        items = some_items(rng, 2, 8)
        ask = asked(rng, PHRASES["long"], items)
        conclusion = f"There are {len(items)} items."
        return ask, f"We go through the list: {numbered(items)}.", conclusion, str(len(items))
    kinds = some_items(rng, 3, 3) if rng.random() < 0.2 else some_words(rng, 3, 3)
    items = [rng.choice(kinds) for _ in range(rng.randint(4, 8))]
    word = rng.choice(items)
    if rng.random() < 0.08:
        word = rng.choice([other for other in WORDS if other not in items])
    seen, steps = 0, []
    for item in items:
        seen += item == word
        steps.append(f"{item} {seen}")
    total = "once" if seen == 1 else f"{seen} times"
    ask = asked(rng, PHRASES["times"], items, word=quoted(rng, word))
    name = "number" if word.isdigit() else "word"
    conclusion = f"The {name} {word} is there {total}."
    return ask, f"We look for {word}: {joined(steps)}.", conclusion, str(seen)


# How a limit may be called, and how the answer calls it.
LIMITS: dict[str, Callable[[int, int], bool]] = {
    "greater than": operator.gt,
    "less than": operator.lt,
    "at least": operator.ge,
    "at most": operator.le,
}
OPPOSITE = {
    "greater than": "at most",
    "less than": "at least",
    "at least": "less than",
    "at most": "greater than",
}


def keep(rng: Random) -> Task:
    """Filter numbers by size or by parity."""
    values = some_numbers(rng, 4, 7)
    items = [str(value) for value in values]
    if rng.random() < 0.5:
        remove = rng.random() < 0.2
        name = rng.choices(list(LIMITS), (1, 1, 4, 4) if remove else (4, 4, 1, 1))[0]
        limit = rng.choice(range(10, 91, 10)) if rng.random() < 0.7 else rng.randint(5, 95)
        if rng.random() < 0.1:
            limit = rng.choice(values)
        kept = [v for v in values if LIMITS[name](v, limit)]
        rule = f"{name} {limit}"
        said = rng.choice(PHRASES["limits"][OPPOSITE[name] if remove else name])
        asks = PHRASES["remove"] if remove else PHRASES["keep"]
        ask = asked(rng, asks, items, rule=f"{said} {limit}")
    else:
        rule, other = rng.choice((("even", "odd"), ("odd", "even")))
        kept = [v for v in values if v % 2 == (rule == "odd")]
        ask = asked(rng, PHRASES["parity"], items, rule=rule, other=other)
    checks = joined([f"{v} {'yes' if v in kept else 'no'}" for v in values])
    result = joined([str(v) for v in kept]) if kept else "none"
    short = result if len(kept) == 1 else ""
    steps = f"We look for numbers that are {rule}: {checks}."
    return ask, steps, f"The result is: {result}", short


def extreme(rng: Random) -> Task:
    """Pick the largest or the smallest number."""
    values = some_numbers(rng)
    kind, best = rng.choice((("largest", max), ("smallest", min)))
    steps, leader = [], values[0]
    for value in values:
        leader = best(leader, value)
        steps.append(f"{value} {leader}")
    said = rng.choice(PHRASES["largest"] if kind == "largest" else PHRASES["smallest"])
    ask = asked(rng, PHRASES["extreme"], [str(value) for value in values], kind=said)
    conclusion = f"The {kind} number is {leader}."
    return ask, f"We keep the {kind} so far: {joined(steps)}.", conclusion, str(leader)


def pick(rng: Random) -> Task:
    """Pick an item by its place, or the largest or smallest number."""
    if rng.random() < 0.5:
        return extreme(rng)
    items = some_items(rng, 3, 8)
    place = rng.randrange(len(items))
    last = place == len(items) - 1 or rng.random() < 0.15
    name, item = ("last", items[-1]) if last else (PLACES[place], items[place])
    if last and rng.random() < 0.12:
        ask = asked(rng, PHRASES["final"], items)
    else:
        ask = asked(rng, PHRASES["at_place"], items, name=name)
    return ask, f"We number the list: {numbered(items)}.", f"The {name} item is {item}.", item


def inside(rng: Random) -> Task:
    """Whether an item is in the list."""
    items = some_items(rng, 3, 6)
    word = rng.choice(items)
    if rng.random() < 0.5:
        others = some_words(rng, 7, 7) if items[0].isalpha() else map(str, some_numbers(rng, 7, 7))
        word = next(other for other in others if other not in items)
    found = word in items
    checks = joined([f"{item} {'yes' if item == word else 'no'}" for item in items])
    ask = asked(rng, PHRASES["inside"], items, word=quoted(rng, word))
    conclusion = f"Yes, {word} is in the list." if found else f"No, {word} is not in the list."
    return ask, f"We look for {word}: {checks}.", conclusion, "yes" if found else "no"


def total(rng: Random) -> Task:
    """Add two to four numbers, one after the other."""
    values = [rng.randint(1, rng.choice((9, 20, 99))) for _ in range(rng.randint(3, 4))]
    asks = PHRASES["total"]
    if rng.random() < 0.2:  # other sums of two numbers are in sums.py
        values, asks = values[:2], TOTAL_OF_TWO
    result, steps = values[0], []
    for value in values[1:]:
        steps.append(add(result, value))
        result += value
    ask = asked(rng, asks, [str(value) for value in values])
    return (
        ask,
        f"We add one after the other. {' '.join(steps)}",
        f"The sum is {result}.",
        str(result),
    )


def where(rng: Random) -> Task:
    """The place of an item."""
    items = some_items(rng, 3, 7)
    place = rng.randrange(len(items))
    ask = asked(rng, PHRASES["where"], items, word=quoted(rng, items[place]))
    conclusion = f"{items[place]} is item {place + 1}."
    places = joined([f"{item} {number}" for number, item in enumerate(items[: place + 1], 1)])
    return ask, f"We look for {items[place]}: {places}.", conclusion, str(place + 1)


SHORT_STEPS = (sort, sort_words, reverse, join)  # their steps end with the result
KINDS: tuple[Callable[[Random], Task], ...] = (
    sort,
    sort_words,
    reverse,
    join,
    count,
    keep,
    pick,
    inside,
    total,
    where,
)
SHARES = (3, 3, 3, 1, 4, 4, 4, 2, 2, 2)


def list_task(rng: Random, kind: Callable[[Random], Task]) -> Sample:
    """A task of one kind."""
    ask, steps, conclusion, short = kind(rng)
    answer = steps if kind in SHORT_STEPS else f"{steps}\n\n{conclusion}"
    ask = loosely(rng, ask)
    if rng.random() < 0.06:
        ask = ask.lower()
    return Sample("lists", ask, steps, answer, conclusion, short)


def lists(rng: Random) -> Sample:
    """A random task with a list."""
    return list_task(rng, rng.choices(KINDS, SHARES)[0])
