"""Word problems made of parts: who, what, how much, and what happens; of one or two steps.

A story is a question, its steps and its conclusion. Steps and conclusion follow from the question
alone, in the same few sentences for all stories, so that there is one right answer to the letter.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from sums import add, subtract
from wording import invented_name, invented_word

Story = tuple[str, str, str]


def phrases(text: str) -> list[str]:
    """The phrases between bars or on lines of their own."""
    return [part.strip() for part in re.split(r"[|\n]", text.strip())]


HIS = (
    "Tom Ben Leo Max Sam Jack Paul Adam Noah Omar Luke Hugo Eric Finn Theo Peter John David Mark "
    "Daniel Oscar Felix Simon Karl Ali Ivan Marco Henry Oliver James Ravi Kofi Juan Diego Yusuf"
).split()
HERS = (
    "Anna Mia Sara Lily Nora Emma Ruth Ella Ivy Zoe Rosa Jane Maya Alma Kate Lucy Clara Eva Julia "
    "Laura Maria Lena Sofia Grace Alice Amy Sally Mary Lisa Hannah Aisha Mei Priya Carmen Olga"
).split()
NAMES = tuple(HIS + HERS)
HIS_KIN = phrases("my brother|my father|my uncle|my friend|my grandfather|my cousin|my dad")
HER_KIN = phrases("my sister|my mother|my aunt|my friend|my grandmother|my mum|my neighbour")
JOBS = (
    "farmer teacher girl boy child baker gardener student cook man woman tourist painter "
    "driver nurse fisherman hunter king queen coach"
).split()
ORGANISATIONS = "shop school store market hotel club kitchen supermarket company".split()

FRUIT = (
    "apples pears plums cherries peaches lemons oranges tomatoes carrots potatoes nuts berries "
    "onions mushrooms melons mangoes bananas figs strawberries cucumbers pumpkins kiwis dates"
).split()
BAKED = (
    "cakes cookies muffins pies rolls pancakes waffles pizzas buns biscuits tarts sandwiches "
    "sweets candies chocolates lollipops doughnuts pretzels"
).split()
FRAGILE = (
    "cups plates glasses bowls vases eggs jars bottles mugs lamps pots mirrors candles tiles "
    "windows"
).split()
OBJECTS = (
    "books coins stamps cards marbles pencils shells stickers stones buttons tickets flowers keys "
    "hats socks toys photos letters pens balls dolls shirts shoes chairs tables boxes bags ropes "
    "bricks beads ribbons brushes crayons erasers rulers notebooks envelopes magazines "
    "posters puzzles games kites drums bells badges medals pins nails screws hammers baskets "
    "buckets blankets pillows towels spoons forks knives scarves gloves umbrellas rings watches "
    "feathers leaves roses tulips seeds planks paintings postcards balloons tents batteries clocks"
).split()
LIVESTOCK = "cows sheep hens goats pigs horses ducks geese rabbits dogs cats donkeys lambs".split()
THINGS = list(dict.fromkeys(FRUIT + BAKED + FRAGILE + OBJECTS))
MONEY = "dollars euros pounds coins cents".split()
ADJECTIVES = (
    "red blue green yellow white black old new small big little nice round pretty cheap shiny"
).split()
COLOURS = "red blue green yellow white black brown pink".split()
CONTAINERS = (
    "boxes bags baskets jars shelves rows crates trays packets buckets drawers tins cartons "
    "piles packs bowls cases chests sacks bundles stacks"
).split()
SINGULAR = {
    "shelves": "shelf",
    "leaves": "leaf",
    "knives": "knife",
    "scarves": "scarf",
    "loaves": "loaf",
    "wolves": "wolf",
    "calves": "calf",
    "boxes": "box",
    "glasses": "glass",
    "watches": "watch",
    "brushes": "brush",
    "foxes": "fox",
    "buses": "bus",
    "bushes": "bush",
    "benches": "bench",
    "sandwiches": "sandwich",
    "peaches": "peach",
    "tomatoes": "tomato",
    "potatoes": "potato",
    "mangoes": "mango",
    "octopuses": "octopus",
    "classes": "class",
    "pies": "pie",
    "cookies": "cookie",
    "geese": "goose",
    "mice": "mouse",
    "children": "child",
    "people": "person",
    "women": "woman",
    "men": "man",
    "passengers": "passenger",
    "sheep": "sheep",
    "fish": "fish",
    "cm": "cm",
    "km": "km",
    "kg": "kg",
}


def single(things: str) -> str:
    """The singular of the plural."""
    if things in SINGULAR:
        return SINGULAR[things]
    return f"{things[:-3]}y" if things.endswith("ies") else things.removesuffix("s")


def amount(number: int, things: str) -> str:
    """So many things."""
    return f"{number} {single(things) if number == 1 else things}"


def article(thing: str) -> str:
    """The thing with its article."""
    return f"{'an' if thing[0] in 'aeio' or thing == 'umbrella' else 'a'} {thing}"


def name_of(rng: Random) -> str:
    """A first name; now and then one that was never read before."""
    return invented_name(rng) if rng.random() < 0.1 else rng.choice(NAMES)


def things_of(rng: Random, table: Sequence[str] = ()) -> str:
    """Things in the plural; now and then some that no language has."""
    if rng.random() < 0.04:
        return f"{invented_word(rng, 1, 2).rstrip('sx')}s"
    return rng.choice(table or THINGS)


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody in a story: `name` at first, `again` by another name, `he` as a pronoun."""

    name: str
    again: str
    he: str
    his: str

    @property
    def plain(self) -> bool:
        """Whether verbs have no s."""
        return self.he in ("I", "we", "they")

    def fields(self) -> dict[str, str]:
        """What phrases call this person, and the verbs that they need."""
        return {
            "Who": capital(self.name),
            "who": self.name,
            "again": self.again,
            "He": capital(self.he),
            "he": self.he,
            "his": self.his,
            "does": "do" if self.plain else "does",
            "has": "have" if self.plain else "has",
            "s": "" if self.plain else "s",
            "was": "were" if self.he in ("we", "they") else "was",
        }


def capital(text: str) -> str:
    """The text with a capital."""
    return text[:1].upper() + text[1:]


def named(rng: Random, but: str = "") -> Who:
    """Somebody with a name."""
    name = name_of(rng)
    while name == but:
        name = name_of(rng)
    male = name in HIS or (name not in HERS and rng.random() < 0.5)
    return Who(name, name, "he" if male else "she", "his" if male else "her")


def someone(rng: Random) -> Who:
    """A person, most often with a name."""
    way = rng.random()
    if way < 0.6:
        return named(rng)
    if way < 0.75:
        return Who("I", "I", "I", "my")
    if way < 0.78:
        return Who("we", "we", "we", "our")
    male = rng.random() < 0.5
    he, his = ("he", "his") if male else ("she", "her")
    if way < 0.9:
        kin = rng.choice(HIS_KIN if male else HER_KIN)
        return Who(kin, kin, he, his)
    job = rng.choice(JOBS)
    if job in ("girl", "woman", "queen", "boy", "man", "king", "fisherman"):
        he, his = ("she", "her") if job in ("girl", "woman", "queen") else ("he", "his")
    return Who(article(job), f"the {job}", he, his)


def organisation(rng: Random) -> Who:
    """A shop or the like."""
    name = rng.choice(ORGANISATIONS)
    return Who(rng.choice((article(name), f"the {name}")), f"the {name}", "it", "its")


def other_than(rng: Random, who: Who) -> str:
    """Somebody else, as the object of a sentence."""
    kin = f"{who.his} {rng.choice('sister brother friend mother father teacher uncle'.split())}"
    if rng.random() < 0.4 and not who.name.startswith("my "):
        return kin
    return named(rng, but=who.name).name


# What happens: the verb now and before, and the rest of the sentence, where {m} is an amount.
GAIN = phrases("""buy bought {m}|find found {m}|get got {m}|get got {m} from {other}
    receive received {m}|win won {m}|collect collected {m}|take took {m}|order ordered {m}
    borrow borrowed {m} from {other}|receive received {m} from {other}|discover discovered {m}
    get got {m} as a present|earn earned {m}|pick picked up {m}|bring brought home {m}
    buy bought {m} at the market|buy bought {m} in a shop|find found {m} at home
    buy bought {m} from {other}|swap swapped a toy for {m}|add added {m}""")
LOSS = phrases("""lose lost {m}|sell sold {m}|give gave {m} to {other}|give gave away {m}
    throw threw away {m}|lend lent {m} to {other}|use used {m}|drop dropped {m}
    sell sold {m} to {other}|hand handed {m} to {other}|send sent {m} to {other}
    give gave {other} {m}|leave left {m} at school|return returned {m}|lose lost {m} on the way
    donate donated {m}|remove removed {m}|take took away {m}
    pass passed {m} to {other}""")
PICKING = phrases("pick picked {m}|harvest harvested {m}|gather gathered {m}|wash washed {m}")
BAKING = phrases("bake baked {m}|make made {m}|prepare prepared {m}")
EATING = phrases("""eat ate {m}|share shared {m} with {other}|eat ate {m} for lunch|taste tasted {m}
    eat ate {m} for breakfast|feed fed {m} to the dog|drop dropped {m}""")
BREAKING = phrases("break broke {m}|drop dropped {m}|smash smashed {m}|crack cracked {m}")
EARNING = phrases("""earn earned {m}|save saved {m}|get got {m} from {other}|find found {m}
    win won {m}|receive received {m}|make made {m}|put put aside {m}|borrow borrowed {m}""")
SPENDING = phrases("""spend spent {m}|pay paid {m}|lose lost {m}|give gave {m} to {other}
    spend spent {m} on food|pay paid {m} for a ticket|lend lent {m} to {other}
    spend spent {m} on a book|give gave away {m}|pay paid {m} for a cake|donate donated {m}""")
BREEDING = phrases("buy bought {m}|get got {m}|receive received {m}|get got {m} from {other}")
GOODS_IN = phrases("""buy bought {m}|get got {m}|order ordered {m}|receive received {m}
    add added {m}""")
GOODS_OUT = phrases("""sell sold {m}|give gave away {m}|throw threw away {m}|lose lost {m}
    sell sold {m} in the morning|send sent away {m}|return returned {m}""")
GAMING = phrases("score scored {m}|win won {m}|get got {m}|earn earned {m}|gain gained {m}")
LOSING = phrases("lose lost {m}")
WORLDS: tuple[tuple[Sequence[str], list[str], list[str], int], ...] = (
    (OBJECTS, GAIN, LOSS, 8),
    (FRUIT, GAIN + PICKING, LOSS + EATING, 4),
    (BAKED, GAIN + BAKING, LOSS + EATING, 4),
    (FRAGILE, GAIN, LOSS + BREAKING, 3),
    (MONEY, EARNING, SPENDING, 4),
    (LIVESTOCK, BREEDING, ["sell sold {m}", "give gave away {m}", "give gave {m} to {other}"], 1),
    (["points"], GAMING, LOSING, 1),
)
TIMES = phrases("""then|later|on Monday|on Tuesday|on Friday|on Sunday|the next day|today
    in the evening
    in the afternoon|after school|after lunch|this week|at noon|the day after|soon after|after that
    in the morning|a week later""")
HAVE_NOW = phrases("""How many {t} {does} {again} have now?|How many {t} {does} {he} have now?
    How many {does} {he} have now?|How many {t} {does} {he} have?|How many {does} {again} have?
    How many {t} {does} {again} have in the end?|How many {t} {has} {he} got now?
    What number of {t} {does} {he} have now?|How many {does} {again} have at the end?
    So how many {t} {does} {he} have now?""")
UP_ONLY = phrases("""How many {t} is that?|How many {t} are there altogether?
    How many is that in all?
    How many in total?|What is the total?|How many {t} {does} {he} have in total?
    How many {t} {does} {again} have altogether?|How many {t} are there now?|How many now?
    How many {t} are there in total?|How many {does} {he} have altogether?|How many {t} in all?
    How many {does} {he} have in all?""")
DOWN_ONLY = phrases("""How many are left?|How many {t} are left?|How many remain?
    How many {t} remain?
    How many {does} {he} have left?|How many {t} {does} {again} have left?|How many {t} now?
    How many {t} {does} {he} still have?|How many {does} {again} still have?|What is left?
    How many {t} {has} {he} left?|How many are still there?|How many {t} {does} {he} keep?
    How many {t} stay with {again}?|What remains?""")


def third(verb: str) -> str:
    """The verb after he or she."""
    if verb == "have":
        return "has"
    if verb.endswith(("s", "sh", "ch", "x", "o", "ss")):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if verb[-1] == "y" and verb[-2] not in "aeou" else f"{verb}s"


def event(rng: Random, who: Who, verbs: list[str], amounts: tuple[str, ...], past: bool) -> str:
    """What somebody does, without the subject."""
    base, before, rest = rng.choice(verbs).split(" ", 2)
    verb = before if past else base if who.plain else third(base)
    return f"{verb} {rest}".format(m=rng.choice(amounts), other=other_than(rng, who))


def gained(rng: Random, b: int, things: str) -> tuple[str, ...]:
    """How an amount that is added may be written."""
    adjective = rng.choice(("new", "other", rng.choice(ADJECTIVES)))
    return (
        *(f"{b} more",) * 4,
        f"{b} more {things}",
        f"{b} more {things}",
        f"another {b}",
        f"another {b} {things}",
        f"{b} {things}",
        f"{b} {adjective} {things}",
    )


def lost(b: int, things: str) -> tuple[str, ...]:
    """How an amount that is taken away may be written."""
    return (
        f"{b}",
        f"{b}",
        f"{b} {things}",
        f"{b} {things}",
        f"{b} of them",
        f"{b} of the {things}",
    )


def two_numbers(rng: Random, up: bool) -> tuple[int, int]:
    """What there is first, and what is added to it or taken from it."""
    if rng.random() < 0.06:
        a = rng.randint(100, 500)
        return a, rng.randint(11, 400 if up else a - 1)
    if up:
        return rng.randint(2, 70), rng.randint(2, rng.choice((9, 30)))
    a = rng.randint(4, 100)
    return a, rng.randint(2, a - 1)


def start_and_add(a: int, b: int, things: str) -> str:
    return f"We start with {a} {things} and {b} are added. {add(a, b)}"


def take(a: int, b: int) -> str:
    return f"We take {b} from {a}. {subtract(a, b)}"


def then(total: int, up: bool, b: int) -> str:
    """A second step."""
    if up:
        return f"Then {b} are added. {add(total, b)}"
    return f"Then we take {b} from {total}. {subtract(total, b)}"


def ends(up: bool, total: int, things: str) -> str:
    """The conclusion of a sum or a difference."""
    return f"That {'makes' if up else 'leaves'} {amount(total, things)}."


def change(rng: Random) -> Story:
    """Somebody gets more of something or has less of it, once or twice."""
    nouns, gains, losses, _ = rng.choices(WORLDS, [world[-1] for world in WORLDS])[0]
    things = things_of(rng, nouns) if len(nouns) > 1 else nouns[0]
    who = someone(rng)
    if rng.random() < 0.12 and nouns in (OBJECTS, FRUIT, FRAGILE, BAKED):
        who, gains, losses = organisation(rng), GOODS_IN, GOODS_OUT
    elif rng.random() < 0.12 and nouns in (OBJECTS, FRUIT, FRAGILE, BAKED):
        gains, losses = PUT, TAKE
    past = rng.random() < 0.45
    up = rng.random() < 0.5
    a, b = two_numbers(rng, up)
    total = a + b if up else a - b
    steps = start_and_add(a, b, things) if up else take(a, b)
    events = [
        event(rng, who, gains, gained(rng, b, things), past)
        if up
        else event(rng, who, losses, lost(b, things), past)
    ]
    if rng.random() < 0.3 and 4 < total < 100:
        up = rng.random() < 0.5
        c = rng.randint(2, 30 if up else min(total - 1, 40))
        steps = f"{steps} {then(total, up, c)}"
        total += c if up else -c
        amounts = (f"{c} more", f"{c} more {things}", f"another {c}") if up else lost(c, things)
        events.append(event(rng, who, gains if up else losses, amounts[:4], past))
    fields = {**who.fields(), "t": things, "a": str(a)}
    fields["had"] = "had" if past else "have" if who.plain else "has"
    fields["A"] = f"{a} {things}"
    if rng.random() < 0.12:
        fields["A"] = f"{a} {rng.choice(ADJECTIVES)} {things}"
    tell = placed if gains is PUT else told
    ask = tell(rng, events, fields, up).format(**fields)
    return ask, steps, ends(up, total, things)


def told(rng: Random, events: list[str], fields: dict[str, str], up: bool) -> str:
    """The sentences of a change and its question, with places for the fields."""
    both = " and ".join(events)
    chain = both if len(events) == 1 else f"{events[0]}, then {events[1]}"
    when = rng.choice(TIMES)
    question = rng.choice(HAVE_NOW + (UP_ONLY if up else DOWN_ONLY))
    if fields["t"] in MONEY and rng.random() < 0.4:
        question = rng.choice(MONEY_NOW if up else MONEY_NOW + MONEY_LEFT)
    asked = question[0].lower() + question[1:]
    first = "{Who} {had} {A}"
    early = question.replace("{he}", "{who}").replace("{again}", "{who}")
    later = f"{{He}} {both}"
    if len(events) == 2 and rng.random() < 0.6:
        later = rng.choice(
            (
                f"{{He}} {events[0]}. Then {{he}} {events[1]}",
                f"First {{he}} {events[0]}. Then {{he}} {events[1]}",
                f"{{He}} {events[0]}. {capital(when)} {{he}} {events[1]}",
                f"{{He}} {events[0]}, and later {{he}} {events[1]}",
            )
        )
    once = (
        f"{first} and {chain}. {question}",
        f"{first}. {later}. {question}",
        f"{first}. {later}. {question}",
        f"{first}. {capital(when)} {{he}} {both}. {question}",
        f"{first}, and {{he}} {both}. {question}",
        f"{first}. Now {{he}} {both}. {question}",
        f"If {{who}} {{had}} {{A}} and {chain}, {asked}",
        f"{first} at first. {later}. {question}",
        f"{first}, but {{he}} {both}. {question}"
        if not up and len(events) == 1
        else f"{first} and {chain}. {asked}",
        f"{{Who}} start{'ed' if fields['had'] == 'had' else fields['s']} with {{A}} and {chain}. "
        + question,
        f"{early} {first} and {chain}.",
        f"{early} {first}. {later}.",
        f"How many {{t}} {{does}} {{who}} have if {{he}} {{had}} {{a}} and {both}?",
        f"{first}. After {{he}} {both}, {asked}"
        if len(events) == 1
        else f"{first}. {later}. {question}",
        f"{first} before {{he}} {both}. {question}",
    )
    return rng.choice(once)


def placed(rng: Random, events: list[str], fields: dict[str, str], up: bool) -> str:
    """The same, where the things are in a place."""
    place = rng.choice(PLACES)
    be = "were" if fields["had"] == "had" else "are"
    first = f"There {be} {{A}} {place}"
    question = rng.choice(UP_PLACE if up else DOWN_PLACE)
    if len(events) == 2:
        return f"{first}. {{Who}} {events[0]}. Then {{he}} {events[1]}. {question}"
    return rng.choice(
        (
            f"{first}. {{Who}} {events[0]}. {question}",
            f"{first} and {{who}} {events[0]}. {question}",
            f"{first}. {capital(rng.choice(TIMES))} {{who}} {events[0]}. {question}",
            f"{capital(place)} there {be} {{A}}. {{Who}} {events[0]}. {question}",
            f"{question} There {be} {{A}} {place} and {{who}} {events[0]}.",
        )
    )


PLACES = phrases("""on a table|in a bag|in a box|in a room|in a garden|in the house|in a drawer
    on the floor|in a cupboard|on a desk|in a basket|in a big chest|in the kitchen""")
PUT = phrases("""put put in {m}|add added {m}|bring brought {m}|lay laid down {m}
    put put down {m}""")
TAKE = phrases("""take took {m}|take took away {m}|remove removed {m}|use used {m}|sell sold {m}
    throw threw away {m}|give gave away {m}|take took {m} home|lose lost {m}""")
UP_PLACE = phrases("""How many {t} are there now?|How many are there altogether?
    How many {t} is that?
    How many {t} are there in total?|How many is that in all?|What is the total?""")
DOWN_PLACE = phrases("""How many {t} are left?|How many are left?|How many remain?
    How many {t} remain?
    How many {t} are still there?|How many are there now?|How many {t} are there now?""")
MONEY_NOW = phrases("""How much money {does} {he} have now?|How much {does} {again} have now?
    How much {does} {he} have?|How much money {does} {again} have?|How much is that?""")
MONEY_LEFT = phrases("""How much is left?|How much money is left?|How much {does} {he} have left?
    How much money {does} {again} have left?|How much remains?|How much {does} {he} still have?""")
