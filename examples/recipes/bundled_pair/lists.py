"""Tasks with lists: sort, reverse, count and filter, item by item."""

from random import Random

from sample import Sample

WORDS = (
    "apple pear plum lemon grape melon cherry fig peach mango red blue green pink white black "
    "cat dog cow fox owl bee ant hen pig goat"
).split()


def joined(items: list[str]) -> str:
    """The items as a user types them."""
    return ", ".join(items)


def numbers(rng: Random, low: int = 3, high: int = 7) -> list[int]:
    """Different numbers from 1 to 99, in random order."""
    return rng.sample(range(1, 100), rng.randint(low, high))


def sort(rng: Random) -> tuple[str, str, str]:
    """Sort numbers in rising or falling order."""
    values = numbers(rng)
    falling = rng.random() < 0.3
    text = joined([str(v) for v in values])
    way = "from large to small" if falling else "from small to large"
    ask = rng.choice(
        (f"Sort these numbers {way}: {text}", f"Put these numbers in order, {way}: {text}")
    )
    ordered = sorted(values, reverse=falling)
    steps = f"The list has {len(values)} numbers: {text}. In order {way}: "
    return ask, steps + joined([str(v) for v in ordered]) + ".", joined([str(v) for v in ordered])


def reverse(rng: Random) -> tuple[str, str, str]:
    if rng.random() < 0.5:
        items: list[str] = rng.sample(list(WORDS), rng.randint(3, 7))
    else:
        items = [str(v) for v in numbers(rng)]
    text = joined(items)
    ask = rng.choice((f"Reverse this list: {text}", f"Say this list backwards: {text}"))
    back = joined(items[::-1])
    return ask, f"The list is {text}. From the last to the first: {back}.", back


def count(rng: Random) -> tuple[str, str, str]:
    """Count a word in a list."""
    kinds = rng.sample(WORDS, 3)
    items = [rng.choice(kinds) for _ in range(rng.randint(4, 8))]
    word = rng.choice(items)
    text = joined(items)
    ask = rng.choice(
        (
            f"How many times is {word} in this list: {text}",
            f"Count the word {word} in this list: {text}",
        )
    )
    seen, steps = 0, []
    for item in items:
        seen += item == word
        steps.append(f"{item} {seen}")
    total = "once" if seen == 1 else f"{seen} times"
    return ask, f"We go through the list: {joined(steps)}.", f"The word {word} is there {total}."


def keep(rng: Random) -> tuple[str, str, str]:
    """Filter numbers by size or by parity."""
    values = numbers(rng, 4, 7)
    text = joined([str(v) for v in values])
    kind = rng.choice(("greater", "less", "even", "odd"))
    if kind in ("greater", "less"):
        limit = rng.choice(range(10, 91, 10))
        rule = f"{kind} than {limit}"
        kept = [v for v in values if (v > limit if kind == "greater" else v < limit)]
        ask = rng.choice(
            (f"Which of these numbers are {rule}: {text}", f"Keep only numbers {rule}: {text}")
        )
    else:
        rule = kind
        kept = [v for v in values if v % 2 == (kind == "odd")]
        ask = rng.choice(
            (f"Which of these numbers are {kind}: {text}", f"Keep only {kind} numbers: {text}")
        )
    checks = joined([f"{v} {'yes' if v in kept else 'no'}" for v in values])
    result = joined([str(v) for v in kept]) if kept else "none"
    return ask, f"We look for numbers that are {rule}: {checks}.", f"The result is: {result}"


def lists(rng: Random) -> Sample:
    """A random task with a list."""
    kind = rng.choice((sort, sort, reverse, count, keep, keep))
    ask, steps, conclusion = kind(rng)
    answer = steps if kind in (sort, reverse) else f"{steps}\n\n{conclusion}"
    return Sample("lists", ask, steps, answer, conclusion)
