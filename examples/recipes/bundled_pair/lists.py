"""Tasks with lists: sort, reverse, count, filter and pick, item by item."""

from collections.abc import Callable
from random import Random

from sample import Sample
from wording import invented_word, loosely

WORDS = (
    "apple pear plum lemon grape melon cherry fig peach mango red blue green pink white black "
    "cat dog cow fox owl bee ant hen pig goat cup hat key pen box bed door lamp book boat tree "
    "rain snow sun moon star wind milk bread salt rice soup cake tea"
).split()
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
Task = tuple[str, str, str, str]  # question, steps, conclusion, the result as a word or number


def joined(items: list[str]) -> str:
    """The items as answers write them."""
    return ", ".join(items)


def typed(rng: Random, items: list[str]) -> str:
    """The items as a user types them."""
    style = rng.random()
    if style < 0.75:
        return ", ".join(items)
    if style < 0.85:
        return ",".join(items)
    if style < 0.95:
        return " ".join(items)
    return f"[{', '.join(items)}]"


def asked(rng: Random, questions: tuple[str, ...], items: list[str]) -> str:
    """One of the questions about the items; {list} may be anywhere in it."""
    return rng.choice(questions).replace("{list}", typed(rng, items))


def some_numbers(rng: Random, low: int = 3, high: int = 7) -> list[int]:
    """Different numbers from 1 to 99, in random order."""
    return rng.sample(range(1, 100), rng.randint(low, high))


def some_words(rng: Random, low: int = 3, high: int = 7) -> list[str]:
    """Different words; now and then some that were never read before."""
    words = rng.sample(WORDS, rng.randint(low, high))
    if rng.random() < 0.15:
        words = list(dict.fromkeys(invented_word(rng) for _ in words))
    return words


def some_items(rng: Random, low: int = 3, high: int = 7) -> list[str]:
    """Words or numbers."""
    if rng.random() < 0.5:
        return some_words(rng, low, high)
    return [str(value) for value in some_numbers(rng, low, high)]


def sort(rng: Random) -> Task:
    """Sort numbers in rising or falling order."""
    values = some_numbers(rng)
    falling = rng.random() < 0.3
    way = "from large to small" if falling else "from small to large"
    questions = [
        f"Sort these numbers {way}: {{list}}",
        f"Put these numbers in order, {way}: {{list}}",
        f"Sort {way}: {{list}}",
        f"Sort the list {{list}} {way}.",
        f"Order these numbers {way}: {{list}}",
        f"Can you sort {{list}} {way}?",
    ]
    if falling:
        questions += ["Sort in descending order: {list}", "Sort {list}, largest first."]
    else:
        questions += ["Sort these numbers: {list}", "Sort {list}", "Sort in rising order: {list}"]
    items = [str(value) for value in values]
    ordered = [str(value) for value in sorted(values, reverse=falling)]
    steps = f"The list has {len(items)} numbers: {joined(items)}. In order {way}: "
    ask = asked(rng, tuple(questions), items)
    return ask, f"{steps}{joined(ordered)}.", joined(ordered), ""


def reverse(rng: Random) -> Task:
    """Say a list backwards."""
    items = some_items(rng)
    questions = (
        "Reverse this list: {list}",
        "Say this list backwards: {list}",
        "Reverse {list}",
        "Write this list in reverse order: {list}",
        "Can you reverse the list {list}?",
        "What is {list} backwards?",
        "Turn this list around: {list}",
    )
    back = joined(items[::-1])
    ask = asked(rng, questions, items)
    return ask, f"The list is {joined(items)}. From the last to the first: {back}.", back, ""


def count(rng: Random) -> Task:
    """Count a word in a list, or all its items."""
    if rng.random() < 0.3:
        items = some_items(rng, 2, 8)
        questions = (
            "How many items are in this list: {list}",
            "How long is this list: {list}",
            "Count the items: {list}",
            "How many things are in the list {list}?",
        )
        steps = joined([f"{number} {item}" for number, item in enumerate(items, 1)])
        ask = asked(rng, questions, items)
        conclusion = f"There are {len(items)} items."
        return ask, f"We go through the list: {steps}.", conclusion, str(len(items))
    kinds = some_words(rng, 3, 3)
    items = [rng.choice(kinds) for _ in range(rng.randint(4, 8))]
    word = rng.choice(items)
    questions = (
        f"How many times is {word} in this list: {{list}}",
        f"Count the word {word} in this list: {{list}}",
        f"How often is {word} in {{list}}?",
        f"How often does {word} appear here: {{list}}",
        f"Count {word} in {{list}}",
        f"How many times does {word} come up in the list {{list}}?",
    )
    seen, steps = 0, []
    for item in items:
        seen += item == word
        steps.append(f"{item} {seen}")
    total = "once" if seen == 1 else f"{seen} times"
    ask = asked(rng, questions, items)
    conclusion = f"The word {word} is there {total}."
    return ask, f"We go through the list: {joined(steps)}.", conclusion, str(seen)


def keep(rng: Random) -> Task:
    """Filter numbers by size or by parity."""
    values = some_numbers(rng, 4, 7)
    rule = rng.choice(("greater", "less", "even", "odd"))
    if rule in ("greater", "less"):
        limit = rng.choice(range(10, 91, 10)) if rng.random() < 0.7 else rng.randint(5, 95)
        kept = [v for v in values if (v > limit if rule == "greater" else v < limit)]
        rule = f"{rule} than {limit}"
        questions = (
            f"Which of these numbers are {rule}: {{list}}",
            f"Keep only numbers {rule}: {{list}}",
            f"Which numbers in {{list}} are {rule}?",
            f"Show only the numbers {rule}: {{list}}",
        )
    else:
        kept = [v for v in values if v % 2 == (rule == "odd")]
        questions = (
            f"Which of these numbers are {rule}: {{list}}",
            f"Keep only {rule} numbers: {{list}}",
            f"Which numbers in {{list}} are {rule}?",
            f"Show only the {rule} numbers: {{list}}",
        )
    checks = joined([f"{v} {'yes' if v in kept else 'no'}" for v in values])
    result = joined([str(v) for v in kept]) if kept else "none"
    ask = asked(rng, questions, [str(v) for v in values])
    return ask, f"We look for numbers that are {rule}: {checks}.", f"The result is: {result}", ""


def pick(rng: Random) -> Task:
    """Pick an item by its place, or the largest or smallest number."""
    if rng.random() < 0.5:
        values = some_numbers(rng)
        kind, best = rng.choice((("largest", max(values)), ("smallest", min(values))))
        questions = (
            f"Which is the {kind} of these numbers: {{list}}",
            f"What is the {kind} number in this list: {{list}}",
            f"Pick the {kind} number: {{list}}",
            f"Find the {kind} number in {{list}}",
            f"What is the {kind} of {{list}}?",
        )
        steps, leader = [], values[0]
        for value in values:
            leader = max(leader, value) if kind == "largest" else min(leader, value)
            steps.append(f"{value} {leader}")
        ask = asked(rng, questions, [str(value) for value in values])
        conclusion = f"The {kind} number is {best}."
        return ask, f"We keep the {kind} so far: {joined(steps)}.", conclusion, str(best)
    items = some_items(rng, 3, 8)
    place = rng.randrange(len(items))
    last = place == len(items) - 1 or rng.random() < 0.15
    name, item = ("last", items[-1]) if last else (PLACES[place], items[place])
    questions = (
        f"What is the {name} item of this list: {{list}}",
        f"Which is the {name} in this list: {{list}}",
        f"Pick the {name} item: {{list}}",
        f"Give me the {name} of {{list}}",
        f"Say the {name} item of {{list}}",
        f"What comes {name} in {{list}}?",
    )
    steps = joined([f"{number} {each}" for number, each in enumerate(items, 1)])
    ask = asked(rng, questions, items)
    return ask, f"We number the list: {steps}.", f"The {name} item is {item}.", item


SHORT_STEPS = (sort, reverse)  # their steps end with the result
KINDS: tuple[Callable[[Random], Task], ...] = (sort, reverse, count, keep, pick)
SHARES = (3, 2, 3, 3, 3)


def list_task(rng: Random, kind: Callable[[Random], Task]) -> Sample:
    """A task of one kind."""
    ask, steps, conclusion, short = kind(rng)
    answer = steps if kind in SHORT_STEPS else f"{steps}\n\n{conclusion}"
    return Sample("lists", loosely(rng, ask), steps, answer, conclusion, short)


def lists(rng: Random) -> Sample:
    """A random task with a list."""
    return list_task(rng, rng.choices(KINDS, SHARES)[0])
