"""Arithmetic word problems, solved in steps that need one small fact each."""

from random import Random

from sample import Sample

NAMES = (
    "Tom Anna Ben Mia Leo Sara Max Lily Sam Nora Jack Emma Paul Ruth Adam Ella Noah Ivy Omar Zoe "
    "Luke Rosa Hugo Jane Eric Maya Finn Alma Theo Kate"
).split()
THINGS = (
    "apples pears books coins stamps cards marbles pencils shells stickers cups eggs stones "
    "buttons candles tickets flowers plums nuts keys hats socks toys photos letters"
).split()
BOXES = "boxes bags baskets jars shelves rows".split()


def add(a: int, b: int) -> str:
    """The steps of a + b by tens and ones."""
    if a < 10 or b < 10:
        return f"{a} + {b} = {a + b}."
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return (
        f"Tens: {a // 10 * 10} + {b // 10 * 10} = {tens}. Ones: {a % 10} + {b % 10} = {ones}. "
        f"{tens} + {ones} = {a + b}, so {a} + {b} = {a + b}."
    )


def subtract(a: int, b: int) -> str:
    """The steps of a - b: first the tens, then the ones."""
    if b < 10:
        return f"{a} - {b} = {a - b}."
    tens = b // 10 * 10
    if b == tens:
        return f"{a} - {b} = {a - b}."
    return (
        f"Take the tens: {a} - {tens} = {a - tens}. Take the ones: {a - tens} - {b % 10} = {a - b}."
    )


def multiply(a: int, b: int) -> str:
    """The step of a times b, from the table."""
    return f"{a} times {b} is {a * b}."


def divide(a: int, b: int) -> str:
    """The step of an exact a / b, from the table."""
    return f"{b} times {a // b} is {a}, so {a} divided by {b} is {a // b}."


def gain(rng: Random) -> tuple[str, str, str]:
    """A word problem of addition: question, steps, conclusion."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
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
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
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
    name, thing, box = rng.choice(NAMES), rng.choice(THINGS), rng.choice(BOXES)
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
    name, thing, box = rng.choice(NAMES), rng.choice(THINGS), rng.choice(BOXES)
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
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
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


def plain(rng: Random) -> tuple[str, str, str]:
    """A calculation without a story."""
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.randint(2, 60), rng.randint(2, 40)
        return f"What is {a} plus {b}?", add(a, b), f"{a} plus {b} is {a + b}."
    if kind == 1:
        a = rng.randint(12, 99)
        b = rng.randint(2, min(a - 1, 60))
        return f"What is {a} minus {b}?", subtract(a, b), f"{a} minus {b} is {a - b}."
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    if kind == 2:
        return f"What is {a} times {b}?", multiply(a, b), f"The answer is {a * b}."
    return f"What is {a * b} divided by {a}?", divide(a * b, a), f"The answer is {b}."


def arithmetic(rng: Random) -> Sample:
    """A random problem; its steps are in the answer, or in the thinking if there is any."""
    kind = rng.choice((gain, gain, loss, loss, groups, share, two_steps, two_steps, plain))
    ask, steps, conclusion = kind(rng)
    return Sample("arithmetic", ask, steps, f"{steps}\n\n{conclusion}", conclusion)
