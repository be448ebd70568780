"""Calculations with two numbers, in steps that need one small fact each."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from read_words import read_words
from sample import Sample
from wording import NUMBERS, in_any_case

SUM_LIMIT = 1000  # numbers in sums and differences are below it
FACTOR_LIMIT = 12  # the greatest factor of a product


def add(a: int, b: int) -> str:
    """The steps of a + b by hundreds, tens and ones."""
    if a < 10 or b < 10:
        return f"{a} + {b} = {a + b}."
    ones = f"Ones: {a % 10} + {b % 10} = {a % 10 + b % 10}."
    tens_a, tens_b = a % 100 // 10 * 10, b % 100 // 10 * 10
    tens = f"Tens: {tens_a} + {tens_b} = {tens_a + tens_b}."
    last = f"{a + b - a % 10 - b % 10} + {a % 10 + b % 10} = {a + b}, so {a} + {b} = {a + b}."
    if a < 100 and b < 100:
        return f"{tens} {ones} {last}"
    hundreds_a, hundreds_b = a // 100 * 100, b // 100 * 100
    both = hundreds_a + hundreds_b
    hundreds = f"Hundreds: {hundreds_a} + {hundreds_b} = {both}."
    middle = f"{both} + {tens_a + tens_b} = {both + tens_a + tens_b}."
    return f"{hundreds} {tens} {ones} {middle} {last}"


def subtract(a: int, b: int) -> str:
    """The steps of a - b: first the hundreds, then the tens, then the ones."""
    if b > a:
        return f"{b} is more than {a}. {b} - {a} = {b - a}, so {a} - {b} = -{b - a}."
    parts = [
        (name, amount)
        for name, amount in (
            ("hundreds", b // 100 * 100),
            ("tens", b % 100 // 10 * 10),
            ("ones", b % 10),
        )
        if amount
    ]
    if len(parts) < 2:
        return f"{a} - {b} = {a - b}."
    steps = []
    left = a
    for name, amount in parts:
        steps.append(f"Take the {name}: {left} - {amount} = {left - amount}.")
        left -= amount
    return " ".join(steps)


def multiply(a: int, b: int) -> str:
    """The step of a times b from the table; the steps by tens and ones beyond it, b below 10."""
    if a <= FACTOR_LIMIT and b <= FACTOR_LIMIT:
        return f"{a} times {b} is {a * b}."
    tens, ones = a // 10 * 10, a % 10
    if not ones:
        return f"{a // 10} times {b} is {a // 10 * b}, so {a} times {b} is {a * b}."
    return (
        f"{tens} times {b} is {tens * b}. {ones} times {b} is {ones * b}. "
        f"{tens * b} + {ones * b} = {a * b}, so {a} times {b} is {a * b}."
    )


def divide(a: int, b: int) -> str:
    """The step of a / b, from the table."""
    step = f"{b} times {a // b} is {a // b * b}"
    if a % b:
        return f"{step}. {a} - {a // b * b} = {a % b} is left over."
    return f"{step}, so {a} divided by {b} is {a // b}."


@dataclass(frozen=True, slots=True)
class Operation:
    """How to calculate with two numbers, and what people call it.

    `asks`: the ten phrasings that are measured. `cores`: the calculation as a thing, `commands`: as
    something to do; both go into `wraps`. {sign} is one of `signs`.
    """

    steps: Callable[[int, int], str]
    result: Callable[[int, int], int]
    word: str
    signs: Sequence[str]
    asks: Sequence[str]
    cores: Sequence[str]
    commands: Sequence[str]


PHRASES = read_words("sums")
PLUS = Operation(add, operator.add, **PHRASES["plus"])
MINUS = Operation(subtract, operator.sub, **PHRASES["minus"])
TIMES = Operation(multiply, operator.mul, **PHRASES["times"])
DIVIDED = Operation(divide, operator.floordiv, **PHRASES["divided"])
OPERATIONS = (PLUS, MINUS, TIMES, DIVIDED)


def numbers(rng: Random, operation: Operation) -> tuple[int, int]:
    """Two numbers to calculate with; most of those for sums are at most 100."""
    if operation is TIMES:
        if rng.random() < 0.15:
            return rng.randint(FACTOR_LIMIT + 1, 99), rng.randint(2, 9)
        return rng.randint(0, FACTOR_LIMIT), rng.randint(0, FACTOR_LIMIT)
    if operation is DIVIDED:
        a, b = rng.randint(0, FACTOR_LIMIT), rng.randint(1, FACTOR_LIMIT)
        rest = rng.randrange(b) if rng.random() < 0.2 else 0
        return a * b + rest, b
    top = SUM_LIMIT - 1 if rng.random() < 0.15 else 100
    a, b = rng.randint(0, top), rng.randint(0, rng.choice((9, 20, top, top)))
    if operation is MINUS and b > a and rng.random() < 0.95:
        a, b = b, a
    return a, b


def calculation(rng: Random, operation: Operation, ask: str) -> Sample:
    """A calculation asked in the words of `ask`."""
    a, b = numbers(rng, operation)
    if "difference" in ask:
        a, b = max(a, b), min(a, b)
    prompt = ask.format(a=a, b=b, sign=rng.choice(operation.signs))
    steps, result = operation.steps(a, b), operation.result(a, b)
    short = str(result)
    if operation is DIVIDED and a % b:
        conclusion, short = f"The answer is {result}, and {a % b} is left over.", ""
    elif operation in (TIMES, DIVIDED):
        conclusion = f"The answer is {result}."
    else:
        conclusion = f"{a} {operation.word} {b} is {result}."
    return Sample("arithmetic", prompt, steps, f"{steps}\n\n{conclusion}", conclusion, short)


def three_numbers(rng: Random) -> Sample:
    """Two sums or differences, one after the other."""
    a, b, c = (rng.randint(0, 99) for _ in range(3))
    first = rng.choice((PLUS, MINUS)) if b <= a else PLUS
    middle = first.result(a, b)
    second = rng.choice((PLUS, MINUS)) if c <= middle else PLUS
    result = second.result(middle, c)
    spoken = f"{a} {first.word} {b} {second.word} {c}"
    written = f"{a} {first.signs[0]} {b} {second.signs[0]} {c}"
    ask = rng.choice(
        (
            f"What is {spoken}?",
            f"What is {written}?",
            written,
            f"{written} = ?",
            written.replace(" ", ""),
            f"How much is {spoken}?",
            f"Calculate {written}.",
        )
    )
    steps = f"{first.steps(a, b)} {second.steps(middle, c)}"
    conclusion = f"{spoken} is {result}."
    return Sample("arithmetic", ask, steps, f"{steps}\n\n{conclusion}", conclusion, str(result))


def spelled(rng: Random, prompt: str) -> str:
    """The prompt with its numbers in words, with or without hyphens; as it is with large ones."""
    if any(int(number) > 100 for number in re.findall(r"\d+", prompt)):
        return prompt
    hyphen = rng.choice("- ")
    words = re.sub(r"\d+", lambda found: NUMBERS[int(found[0])].replace("-", hyphen), prompt)
    return words[0].upper() + words[1:]


def in_some_words(rng: Random, operation: Operation) -> str:
    """A phrasing with {a} and {b}."""
    if rng.random() < 0.3:
        return rng.choice(operation.asks)
    if rng.random() < 0.6:
        ask = rng.choice(PHRASES["wraps"]).replace("{}", rng.choice(operation.cores))
    else:
        ask = rng.choice(PHRASES["command_wraps"]).replace("{}", rng.choice(operation.commands))
    return ask[0].upper() + ask[1:]


def sums(rng: Random) -> Sample:
    """A calculation without a story, in any words, its numbers now and then in words, too."""
    if rng.random() < 0.06:
        return three_numbers(rng)
    operation = rng.choices(OPERATIONS, (4, 4, 3, 1))[0]
    ask = in_some_words(rng, operation)
    if "left" in ask and operation is not MINUS:
        ask = rng.choice(operation.asks)
    sample = calculation(rng, operation, ask)
    if "{sign}" not in ask and rng.random() < 0.12:
        sample = replace(sample, prompt=spelled(rng, sample.prompt))
    return replace(sample, prompt=in_any_case(rng, sample.prompt))
