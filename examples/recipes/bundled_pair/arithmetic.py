"""Arithmetic: word problems, solved in steps that need one small fact each, and plain sums."""

from dataclasses import replace
from random import Random

from sample import Sample
from sums import add, divide, multiply, subtract, sums
from wording import invented_name, loosely

NAMES = (
    "Tom Anna Ben Mia Leo Sara Max Lily Sam Nora Jack Emma Paul Ruth Adam Ella Noah Ivy Omar Zoe "
    "Luke Rosa Hugo Jane Eric Maya Finn Alma Theo Kate"
).split()
THINGS = (
    "apples pears books coins stamps cards marbles pencils shells stickers cups eggs stones "
    "buttons candles tickets flowers plums nuts keys hats socks toys photos letters"
).split()
BOXES = "boxes bags baskets jars shelves rows".split()
COINS = "coins euros dollars cents pounds".split()
CROWDS = (
    ("birds", "in a tree"),
    ("children", "in a room"),
    ("people", "on a bus"),
    ("cars", "in a street"),
    ("ducks", "on a lake"),
    ("sheep", "in a field"),
    ("guests", "at a party"),
    ("fish", "in a pond"),
    ("ships", "in a port"),
    ("bees", "on a flower"),
)


def name_of(rng: Random) -> str:
    """A first name; now and then one that was never read before."""
    return invented_name(rng) if rng.random() < 0.1 else rng.choice(NAMES)


def gain(rng: Random) -> tuple[str, str, str]:
    """A word problem of addition: question, steps, conclusion."""
    name, thing = name_of(rng), rng.choice(THINGS)
    a, b = rng.randint(2, 60), rng.randint(2, 40)
    verb, past = rng.choice((("buys", "bought"), ("finds", "found"), ("gets", "got")))
    ask = rng.choice(
        (
            f"{name} has {a} {thing} and {verb} {b} more. How many {thing} does {name} have now?",
            f"{name} had {a} {thing}. Then {name} {past} {b} more. "
            f"How many {thing} is that in all?",
            f"If {name} has {a} {thing} and {verb} {b} more {thing}, how many are there?",
        )
    )
    steps = f"{name} starts with {a} {thing}. {name} {verb} {b} more, so we add. {add(a, b)}"
    return ask, steps, f"{name} has {a + b} {thing} now."


def loss(rng: Random) -> tuple[str, str, str]:
    """A word problem of subtraction."""
    name, thing = name_of(rng), rng.choice(THINGS)
    a = rng.randint(12, 99)
    b = rng.randint(2, min(a - 1, 60))
    verb, past = rng.choice((("loses", "lost"), ("sells", "sold"), ("gives away", "gave away")))
    ask = rng.choice(
        (
            f"{name} has {a} {thing} and {verb} {b}. How many {thing} are left?",
            f"{name} had {a} {thing}. Then {name} {past} {b}. "
            f"How many {thing} does {name} still have?",
            f"If {name} has {a} {thing} and {verb} {b} of them, how many are left?",
        )
    )
    steps = f"{name} starts with {a} {thing}. {name} {verb} {b}, so we subtract. {subtract(a, b)}"
    return ask, steps, f"{name} has {a - b} {thing} left."


def groups(rng: Random) -> tuple[str, str, str]:
    """A word problem of multiplication."""
    name, thing, box = name_of(rng), rng.choice(THINGS), rng.choice(BOXES)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    ask = rng.choice(
        (
            f"{name} has {a} {box} with {b} {thing} in each. How many {thing} is that?",
            f"There are {a} {box} and each holds {b} {thing}. How many {thing} are there in all?",
        )
    )
    steps = f"There are {a} {box} with {b} {thing} in each, so we multiply. {multiply(a, b)}"
    return ask, steps, f"There are {a * b} {thing} in all."


def share(rng: Random) -> tuple[str, str, str]:
    """A word problem of exact division."""
    name, thing, box = name_of(rng), rng.choice(THINGS), rng.choice(BOXES)
    b, each = rng.randint(2, 12), rng.randint(2, 12)
    ask = rng.choice(
        (
            f"{name} puts {b * each} {thing} into {b} {box}, the same in each. "
            f"How many go in each?",
            f"{name} shares {b * each} {thing} over {b} {box}. How many {thing} are in each?",
        )
    )
    steps = f"{b * each} {thing} go into {b} {box}, so we divide. {divide(b * each, b)}"
    return ask, steps, f"There are {each} {thing} in each."


def two_steps(rng: Random) -> tuple[str, str, str]:
    """A word problem with a sum or product, and a second step on its result."""
    name, thing = name_of(rng), rng.choice(THINGS)
    c = rng.randint(2, 9)
    if rng.random() < 0.5:
        a, b = rng.randint(5, 40), rng.randint(5, 40)
        ask = (
            f"{name} has {a} {thing}, buys {b} more and gives away {c}. How many {thing} are left?"
        )
        steps = (
            f"First we add. {add(a, b)} Then {name} gives away {c}, so we subtract. "
            f"{subtract(a + b, c)}"
        )
        return ask, steps, f"{name} has {a + b - c} {thing} left."
    a, b, box = rng.randint(2, 9), rng.randint(2, 9), rng.choice(BOXES)
    ask = f"{name} has {a} {box} with {b} {thing} in each and {c} more {thing}. How many in all?"
    steps = f"First we multiply. {multiply(a, b)} Then we add {c} more. {add(a * b, c)}"
    return ask, steps, f"{name} has {a * b + c} {thing} in all."


def away(rng: Random) -> tuple[str, str, str]:
    """Some of a crowd leave, or others join it."""
    thing, place = rng.choice(CROWDS)
    a = rng.randint(3, 60)
    b = rng.randint(1, a - 1)
    if rng.random() < 0.5:
        ask = rng.choice(
            (
                f"There are {a} {thing} {place}. {b} leave. How many stay?",
                f"{a} {thing} are {place} and {b} go away. How many {thing} are left?",
                f"Of {a} {thing} {place}, {b} leave. How many are still there?",
            )
        )
        steps = f"There are {a} {thing} and {b} leave, so we subtract. {subtract(a, b)}"
        return ask, steps, f"{a - b} {thing} are left."
    ask = rng.choice(
        (
            f"There are {a} {thing} {place}. {b} more come. How many are there now?",
            f"{a} {thing} are {place} and {b} more join them. How many {thing} is that?",
            f"{b} {thing} come to {a} {thing} {place}. How many are there together?",
        )
    )
    steps = f"There are {a} {thing} and {b} more come, so we add. {add(a, b)}"
    return ask, steps, f"There are {a + b} {thing} now."


def price(rng: Random) -> tuple[str, str, str]:
    """What several things of one price cost."""
    thing, coin = rng.choice(THINGS), rng.choice(COINS)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    ask = rng.choice(
        (
            f"One of the {thing} costs {a} {coin}. How much do {b} {thing} cost?",
            f"{b} {thing} cost {a} {coin} each. How much is that in all?",
            f"How much are {b} {thing} at {a} {coin} each?",
        )
    )
    steps = f"There are {b} {thing} at {a} {coin} each, so we multiply. {multiply(b, a)}"
    return ask, steps, f"They cost {a * b} {coin}."


def age(rng: Random) -> tuple[str, str, str]:
    """How old somebody is who is some years older or younger."""
    name, other = name_of(rng), name_of(rng)
    while other == name:
        other = name_of(rng)
    a = rng.randint(5, 70)
    b = rng.randint(1, min(20, a - 1))
    if rng.random() < 0.5:
        ask = f"{name} is {a} years old. {other} is {b} years older. How old is {other}?"
        steps = f"{other} is {b} years older, so we add. {add(a, b)}"
        return ask, steps, f"{other} is {a + b} years old."
    ask = f"{name} is {a} years old. {other} is {b} years younger. How old is {other}?"
    steps = f"{other} is {b} years younger, so we subtract. {subtract(a, b)}"
    return ask, steps, f"{other} is {a - b} years old."


def together(rng: Random) -> tuple[str, str, str]:
    """What two people have together, or how many more one has."""
    name, other, thing = name_of(rng), name_of(rng), rng.choice(THINGS)
    while other == name:
        other = name_of(rng)
    a, b = rng.randint(2, 60), rng.randint(2, 60)
    if rng.random() < 0.6:
        ask = rng.choice(
            (
                f"{name} has {a} {thing} and {other} has {b}. How many do they have together?",
                f"{name} has {a} {thing}. {other} has {b} {thing}. How many {thing} are there?",
            )
        )
        steps = f"{name} has {a} {thing} and {other} has {b}, so we add. {add(a, b)}"
        return ask, steps, f"They have {a + b} {thing} together."
    a, b = max(a, b) + 1, min(a, b)
    ask = f"{name} has {a} {thing} and {other} has {b}. How many more does {name} have?"
    steps = f"{name} has {a} {thing} and {other} has {b}, so we subtract. {subtract(a, b)}"
    return ask, steps, f"{name} has {a - b} more {thing}."


STORIES = (gain, gain, loss, loss, groups, share, two_steps, two_steps, away, price, age, together)


def stories(rng: Random) -> Sample:
    """A word problem."""
    ask, steps, conclusion = rng.choice(STORIES)(rng)
    number = next(word for word in conclusion.rstrip(".").split() if word.isdigit())
    return Sample(
        "arithmetic", loosely(rng, ask), steps, f"{steps}\n\n{conclusion}", conclusion, number
    )


def arithmetic(rng: Random) -> Sample:
    """A random calculation or word problem; its steps are in the answer, or in the thinking."""
    if rng.random() < 0.5:
        return stories(rng)
    sample = sums(rng)
    return replace(sample, prompt=loosely(rng, sample.prompt))
