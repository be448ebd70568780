"""Arithmetic: word problems, solved in steps that need one small fact each, and plain sums."""

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from read_words import read_words
from sample import Sample
from stories import (
    MONEY,
    NAMES,
    THINGS,
    Story,
    amount,
    article,
    capital,
    change,
    ends,
    named,
    single,
    someone,
    start_and_add,
    take,
    then,
    things_of,
    third,
    two_numbers,
)
from sums import add, divide, multiply, subtract, sums
from wording import loosely

__all__ = ["NAMES", "THINGS", "arithmetic", "stories"]

PHRASES = read_words("arithmetic")
SMALL = "zero one two three four five six seven eight nine ten eleven twelve".split()


def fill(rng: Random, asks: list[str], **fields: object) -> str:
    """One of the phrasings with all its fields; a field in capitals starts a sentence."""
    known = {capital(name): capital(str(value)) for name, value in fields.items()}
    return rng.choice(asks).format(**{**known, **fields})


def crowd(rng: Random) -> Story:
    """Some of a crowd leave, or others join it."""
    things, place, come, go = rng.choice(PHRASES["crowds"])
    up = rng.random() < 0.5
    a, b = two_numbers(rng, up)
    past = rng.random() < 0.4
    verb = rng.choice((come if up else go).split(",")).split("/")[past]
    more = (f"{b} more", f"{b} more {things}", f"another {b}")
    some = rng.choice(more if up else (f"{b}", f"{b} {things}", f"{b} of them"))
    q = rng.choice(PHRASES["crowd_up"] if up else PHRASES["crowd_down"]).format(t=things, p=place)
    asks = PHRASES["crowd"] if up else PHRASES["crowd"] + PHRASES["crowd_of"]
    be = "were" if past else "are"
    asked = q[0].lower() + q[1:]
    ask = fill(rng, asks, q=q, ask=asked, be=be, a=a, b=b, t=things, p=place, some=some, verb=verb)
    total = a + b if up else a - b
    steps = start_and_add(a, b, things) if up else take(a, b)
    return ask, steps, ends(up, total, things)


def factors(rng: Random) -> tuple[int, int]:
    """Two numbers of the multiplication table."""
    return rng.randint(2, 12), rng.randint(2, 12)


def each(a: int, groups: str, b: int, things: str) -> str:
    """The step of so many groups of b things."""
    return f"We multiply, because there are {a} {groups} with {b} {things} each. {multiply(a, b)}"


def container(rng: Random, things: str) -> dict[str, str]:
    """Something that holds these things."""
    boxes = rng.choice([other for other in PHRASES["containers"] if other != things])
    holds = rng.choice(("holds", "has", "contains"))
    return {"boxes": boxes, "box": single(boxes), "holds": holds, "t": things}


def groups(rng: Random) -> Story:
    """Boxes with as many things in each; perhaps there are others or some are lost."""
    things = things_of(rng)
    f = {**someone(rng).fields(), **container(rng, things)}
    a, b = factors(rng)
    steps = each(a, f["boxes"], b, things)
    q = rng.choice(PHRASES["how_many"]).format(t=things)
    if rng.random() < 0.7:
        return fill(rng, PHRASES["groups"], **f, q=q, a=a, b=b), steps, ends(True, a * b, things)
    up = rng.random() < 0.6
    c = rng.randint(2, min(30, a * b - 1))
    q = q if up else rng.choice(PHRASES["remain"]).format(t=things)
    asks = PHRASES["groups_more" if up else "groups_less"]
    ask = fill(rng, asks, **f, q=q, a=a, b=b, c=c)
    total = a * b + c if up else a * b - c
    return ask, f"{steps} {then(a * b, up, c)}", ends(up, total, things)


def rate(rng: Random) -> Story:
    """So many a day, or so many parts of each."""
    a, b = factors(rng)
    who = someone(rng)
    if rng.random() < 0.35:
        units, b, things = rng.choice(PHRASES["parts"])
        one = article(single(units))
        ask = fill(rng, PHRASES["part"], **who.fields(), a=a, b=b, units=units, t=things, one=one)
    else:
        base, things, periods = rng.choice(PHRASES["rates"])
        unit = rng.choice(periods.split(","))
        units = f"{unit}s"
        a_unit = f"{'an' if unit[0] in 'eh' else 'a'} {unit}"
        every = rng.choice((f"every {unit}", f"each {unit}", f"per {unit}", a_unit))
        verb = base if who.plain else third(base)
        names = {"a": a, "b": b, "units": units, "t": things, "every": every}
        ask = fill(rng, PHRASES["rate"], **who.fields(), **names, base=base, verb=verb)
    return ask, each(a, units, b, things), ends(True, a * b, things)


def price(rng: Random) -> Story:
    """What things of one price cost together, perhaps with the change."""
    coin = rng.choice(MONEY)
    things = things_of(rng)
    (a, b), who = factors(rng), someone(rng)
    an = article(single(things))
    f = {**who.fields(), "an": an, "x": single(things), "t": things, "coin": coin, "a": a, "b": b}
    steps = f"We multiply, because there are {a} {things} at {b} {coin} each. {multiply(a, b)}"
    if rng.random() < 0.7:
        return fill(rng, PHRASES["price"], **f), steps, ends(True, a * b, coin)
    paid = rng.choice([n for n in (10, 20, 50, 100, 150) if n > a * b])
    q = rng.choice(PHRASES["money_rest"]).format(**who.fields())
    ask = fill(rng, PHRASES["buy_some"], **f, c=paid, q=q)
    back = f"Then we take {a * b} from {paid}. {subtract(paid, a * b)}"
    return ask, f"{steps} {back}", ends(False, paid - a * b, coin)


def money(rng: Random) -> Story:
    """The change, or two prices together."""
    coin, who = rng.choice(MONEY), someone(rng)
    x, y = (single(things) for things in rng.sample(THINGS, 2))
    q = rng.choice(PHRASES["money_rest"]).format(**who.fields())
    f = {**who.fields(), "coin": coin, "an": article(x), "other": article(y), "x": x, "q": q}
    if rng.random() < 0.5:
        paid = rng.choice((10, 20, 50, 100, rng.randint(5, 99)))
        cost = rng.randint(2, paid - 1)
        ask = fill(rng, PHRASES["change"], **f, a=paid, b=cost)
        return ask, take(paid, cost), ends(False, paid - cost, coin)
    a, b = rng.randint(2, 49), rng.randint(2, 49)
    if rng.random() < 0.6:
        return fill(rng, PHRASES["both"], **f, a=a, b=b), both(a, b), ends(True, a + b, coin)
    ask = fill(rng, PHRASES["both_left"], **f, a=a, b=b, c=100)
    steps = f"{both(a, b)} Then we take {a + b} from 100. {subtract(100, a + b)}"
    return ask, steps, ends(False, 100 - a - b, coin)


def both(a: int, b: int) -> str:
    """The steps of two amounts together."""
    return f"We add {a} and {b}. {add(a, b)}"


def share(rng: Random) -> Story:
    """Things go to as many in equal parts, or into boxes of a size."""
    things = things_of(rng)
    people = rng.choice("children friends people boys girls students players families".split())
    f = {**someone(rng).fields(), **container(rng, things)}
    f |= {"people": people, "person": single(people)}
    b, every = factors(rng)
    n = b * every
    steps = f"We divide {n} {things} by {b}. {divide(n, b)}"
    if rng.random() < 0.7:
        ask = fill(rng, PHRASES["share"], **f, n=n, b=b)
        return ask, steps, f"Each gets {amount(every, things)}."
    return fill(rng, PHRASES["fit"], **f, n=n, b=b), steps, ends(True, every, f["boxes"])


def part(rng: Random) -> Story:
    """What is left of a whole without one of its parts."""
    a = rng.randint(5, 100)
    b = rng.randint(2, a - 2)
    if rng.random() < 0.5:
        place, things, x, y = rng.choice(PHRASES["wholes"])
        x, y = rng.choice(((x, y), (y, x)))
        ask = fill(rng, PHRASES["whole"], p=place, t=things, x=x, y=y, a=a, b=b)
        return ask, take(a, b), ends(False, a - b, y)
    things, who = things_of(rng), someone(rng)
    x, y = rng.sample(PHRASES["colours"], 2)
    ask = fill(rng, PHRASES["coloured"], **who.fields(), t=things, x=x, y=y, a=a, b=b)
    return ask, take(a, b), ends(False, a - b, things)


def rest(rng: Random) -> Story:
    """What is left of a book, a way or a room."""
    whole, done, things = rng.choice(PHRASES["room"])
    who = someone(rng)
    a = rng.randint(12, 100)
    b = rng.randint(2, a - 1)
    names = who.fields()
    q = rng.choice(PHRASES["left"]).format(t=things)
    whole = whole.format(a=a)
    done = done.format(**names, b=b)
    asks = (
        f"{whole} {capital(done)} {q}",
        f"{whole} {capital(done)} {q}",
        f"{whole[:-1]} and {done} {q}",
        f"{whole[:-1]}, and {done} {q}",
        f"If {whole[0].lower()}{whole[1:-1]} and {done[:-1]}, {q[0].lower()}{q[1:]}",
        f"{q} {whole} {capital(done)}",
    )
    ask = rng.choice(asks)
    return ask, take(a, b), ends(False, a - b, things)


def together(rng: Random) -> Story:
    """Two or three amounts of two people, times or kinds together."""
    who = someone(rng)
    other = named(rng, but=who.name).name
    a, b, c = (rng.randint(2, 45) for _ in range(3))
    things = things_of(rng)
    place, later = rng.choice(PHRASES["pairs"])
    base, past = rng.choice(PHRASES["did"])
    verb = past if rng.random() < 0.6 else base if who.plain else third(base)
    f = {**who.fields(), "other": other, "verb": verb, "p": place, "r": later}
    f |= {"a": a, "b": b, "t": things, "q": rng.choice(PHRASES["how_many"]).format(t=things)}
    way = rng.random()
    if way < 0.2:
        f["x"], f["y"], f["t"] = rng.choice(PHRASES["kinds_of"])
        return fill(rng, PHRASES["two_kinds"], **f), both(a, b), ends(True, a + b, f["t"])
    if way < 0.35:
        steps = f"{both(a, b)} {then(a + b, True, c)}"
        return fill(rng, PHRASES["days"], **f, c=c), steps, ends(True, a + b + c, things)
    ask = fill(rng, PHRASES["together"] if way < 0.7 else PHRASES["two_people"], **f)
    return ask, both(a, b), ends(True, a + b, things)


def compare(rng: Random) -> Story:
    """How many more somebody has, or what somebody has who has more than another."""
    who = someone(rng)
    other, things = named(rng, but=who.name).name, things_of(rng)
    a = rng.randint(5, 80)
    b = rng.randint(2, a - 1)
    f = {**who.fields(), "other": other, "t": things}
    way = rng.random()
    if way < 0.35:
        ask = fill(rng, PHRASES["more_than"], **f, a=a, b=b)
    elif way < 0.6:
        says, more, things, low, high = rng.choice(PHRASES["measures"])
        a = rng.randint(low + 1, high)
        b = rng.randint(low, a - 1)
        who = named(rng, but=other)
        x, y = says.format(n=a), says.format(n=b)
        f = {"who": who.name, "other": other, "t": things}
        ask = fill(rng, PHRASES["measured"], **f, x=x, y=y, more=more)
    else:
        up = rng.random() < 0.5
        more = "more" if up else rng.choice(("fewer", "less"))
        b = rng.randint(2, min(a - 1, 20))
        ask = fill(rng, PHRASES["related"], **f, a=a, b=b, more=more)
        steps = start_and_add(a, b, things) if up else take(a, b)
        return ask, steps, ends(up, a + b if up else a - b, things)
    steps = f"We compare {a} and {b}. {subtract(a, b)}"
    return ask, steps, f"The difference is {amount(a - b, things)}."


def age(rng: Random) -> Story:
    """How old somebody is who is older or younger, or later or before."""
    who = someone(rng)
    while who.he == "we":
        who = someone(rng)
    a = rng.randint(5, 70)
    up = rng.random() < 0.5
    b = rng.randint(2, min(20, a - 1))
    f = {**who.fields(), "be": "am" if who.he == "I" else "is", "a": a, "b": b}
    f["them"] = "me" if who.he == "I" else who.name
    if rng.random() < 0.6:
        other = named(rng, but=who.name).name
        ask = fill(rng, PHRASES["age"], **f, other=other, older="older" if up else "younger")
    else:
        ask = fill(rng, PHRASES["age_later"] if up else PHRASES["age_before"], **f)
    steps = start_and_add(a, b, "years") if up else take(a, b)
    return ask, steps, ends(up, a + b if up else a - b, "years")


def as_many(rng: Random) -> Story:
    """Some times as many, or half."""
    who = someone(rng)
    other, things = named(rng, but=who.name).name, things_of(rng)
    f = {**who.fields(), "other": other, "t": things, "x": rng.choice(PHRASES["colours"])}
    a, b = factors(rng)
    if rng.random() < 0.4:
        n = 2 * b
        steps = f"We divide {n} {things} by 2. {divide(n, 2)}"
        return fill(rng, PHRASES["half"], **f, n=n), steps, ends(True, b, things)
    a = 2 if rng.random() < 0.3 else a
    times = "twice" if a == 2 and rng.random() < 0.8 else f"{a} times"
    ask = fill(rng, PHRASES["as_many"], **f, b=b, times=times)
    steps = f"We multiply, because it is {a} times {b} {things}. {multiply(a, b)}"
    return ask, steps, ends(True, a * b, things)


def missing(rng: Random) -> Story:
    """What is missing to an amount, or what there was at first."""
    who, things = someone(rng), things_of(rng)
    if rng.random() < 0.25:
        a, b = rng.randint(2, 50), rng.randint(2, 50)
        ask = fill(rng, PHRASES["at_first"], **who.fields(), t=things, a=a, b=b)
        return ask, both(a, b), ends(True, a + b, things)
    a = rng.randint(5, 100)
    b = rng.randint(2, a - 1)
    return (
        fill(rng, PHRASES["need"], **who.fields(), t=things, a=a, b=b),
        take(a, b),
        ends(False, a - b, things),
    )


STORIES: tuple[tuple[Callable[[Random], Story], int], ...] = (
    (change, 10),
    (crowd, 3),
    (groups, 4),
    (rate, 3),
    (price, 3),
    (money, 3),
    (share, 3),
    (part, 2),
    (rest, 2),
    (together, 4),
    (compare, 3),
    (age, 2),
    (as_many, 2),
    (missing, 2),
)


def as_typed(rng: Random, ask: str) -> str:
    """The question as it is, with an opening, in small letters, or with words for numbers."""
    if rng.random() < 0.06:
        opening = rng.choice(PHRASES["openings"])
        ask = f"{opening} {ask}"
    if rng.random() < 0.05:
        ask = re.sub(r"\b([2-9]|1[0-2])\b", lambda found: SMALL[int(found[1])], ask)
        ask = re.sub(r"(^|[.?:] )([a-z])", lambda found: found[1] + found[2].upper(), ask)
    return ask.lower() if rng.random() < 0.1 else ask


def stories(rng: Random) -> Sample:
    """A word problem."""
    ask, steps, conclusion = rng.choices(*zip(*STORIES, strict=True))[0](rng)
    number = next(word for word in conclusion.rstrip(".").split() if word.isdigit())
    prompt = loosely(rng, as_typed(rng, ask))
    return Sample("arithmetic", prompt, steps, f"{steps}\n\n{conclusion}", conclusion, number)


def arithmetic(rng: Random) -> Sample:
    """A random calculation or word problem; its steps are in the answer, or in the thinking."""
    if rng.random() < 0.5:
        return stories(rng)
    sample = sums(rng)
    return replace(sample, prompt=loosely(rng, sample.prompt))
