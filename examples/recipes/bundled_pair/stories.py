"""Word problems made of parts: who, what, how much, and what happens; of one or two steps.

A story is a question, its steps and its conclusion. Steps and conclusion follow from the question
alone, in the same few sentences for all stories, so that there is one right answer to the letter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from read_words import read_words
from sums import add, subtract
from wording import invented_name, invented_word

Story = tuple[str, str, str]


PHRASES = read_words("stories")
HIS, HERS = PHRASES["his"], PHRASES["hers"]
NAMES = tuple(HIS + HERS)
FRUIT, BAKED, FRAGILE = PHRASES["fruit"], PHRASES["baked"], PHRASES["fragile"]
OBJECTS, MONEY = PHRASES["objects"], PHRASES["money"]
THINGS = list(dict.fromkeys(FRUIT + BAKED + FRAGILE + OBJECTS))


def single(things: str) -> str:
    """The singular of the plural."""
    if things in PHRASES["singular"]:
        return PHRASES["singular"][things]
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
        kin = rng.choice(PHRASES["his_kin"] if male else PHRASES["her_kin"])
        return Who(kin, kin, he, his)
    job = rng.choice(PHRASES["jobs"])
    if job in ("girl", "woman", "queen", "boy", "man", "king", "fisherman"):
        he, his = ("she", "her") if job in ("girl", "woman", "queen") else ("he", "his")
    return Who(article(job), f"the {job}", he, his)


def organisation(rng: Random) -> Who:
    """A shop or the like."""
    name = rng.choice(PHRASES["organisations"])
    return Who(rng.choice((article(name), f"the {name}")), f"the {name}", "it", "its")


def other_than(rng: Random, who: Who) -> str:
    """Somebody else, as the object of a sentence."""
    kin = f"{who.his} {rng.choice('sister brother friend mother father teacher uncle'.split())}"
    if rng.random() < 0.4 and not who.name.startswith("my "):
        return kin
    return named(rng, but=who.name).name


# Things, what adds to them, what takes from them, and the share.
WORLDS: tuple[tuple[Sequence[str], list[str], list[str], int], ...] = (
    (OBJECTS, PHRASES["gain"], PHRASES["loss"], 8),
    (FRUIT, PHRASES["gain"] + PHRASES["picking"], PHRASES["loss"] + PHRASES["eating"], 4),
    (BAKED, PHRASES["gain"] + PHRASES["baking"], PHRASES["loss"] + PHRASES["eating"], 4),
    (FRAGILE, PHRASES["gain"], PHRASES["loss"] + PHRASES["breaking"], 3),
    (MONEY, PHRASES["earning"], PHRASES["spending"], 4),
    (PHRASES["livestock"], PHRASES["breeding"], PHRASES["selling"], 1),
    (["points"], PHRASES["gaming"], PHRASES["losing"], 1),
)


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
    adjective = rng.choice(("new", "other", rng.choice(PHRASES["adjectives"])))
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
        who, gains, losses = organisation(rng), PHRASES["goods_in"], PHRASES["goods_out"]
    elif rng.random() < 0.12 and nouns in (OBJECTS, FRUIT, FRAGILE, BAKED):
        gains, losses = PHRASES["put"], PHRASES["take"]
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
        adjective = rng.choice(PHRASES["adjectives"])
        fields["A"] = f"{a} {adjective} {things}"
    tell = placed if gains is PHRASES["put"] else told
    return tell(rng, events, fields, up), steps, ends(up, total, things)


def told(rng: Random, events: list[str], fields: dict[str, str], up: bool) -> str:
    """The sentences of a change and its question."""
    once, both = len(events) == 1, " and ".join(events)
    names = {**fields, "When": capital(rng.choice(PHRASES["times"])), "both": both}
    names |= {"chain": both if once else f"{events[0]}, then {events[1]}"}
    names["start"] = f"start{'ed' if fields['had'] == 'had' else fields['s']}"
    question = rng.choice(PHRASES["have_now"] + PHRASES["up_only" if up else "down_only"])
    if fields["t"] in MONEY and rng.random() < 0.4:
        question = rng.choice(PHRASES["money_now"] + ([] if up else PHRASES["money_left"]))
    names["early"] = question.replace("{he}", "{who}").replace("{again}", "{who}").format(**fields)
    names["question"] = question = question.format(**fields)
    names["asked"] = question[0].lower() + question[1:]
    later = "{He} {both}"
    if not once and rng.random() < 0.6:
        later = rng.choice(PHRASES["told_later"])
    names["later"] = later.format(**names, one=events[0], two=events[-1])
    but = " and {chain}. {asked}" if up or not once else ", but {he} {both}. {question}"
    after = ". After {he} {both}, {asked}" if once else ". {later}. {question}"
    names |= {"but": but.format(**names), "after": after.format(**names)}
    return rng.choice(PHRASES["told"]).format(**names)


def placed(rng: Random, events: list[str], fields: dict[str, str], up: bool) -> str:
    """The same, where the things are in a place."""
    place = rng.choice(PHRASES["places"])
    names = {**fields, "place": place, "Place": capital(place), "one": events[0], "two": events[-1]}
    names["be"] = "were" if fields["had"] == "had" else "are"
    names["question"] = rng.choice(PHRASES["up_place"] if up else PHRASES["down_place"])
    names["question"] = names["question"].format(**fields)
    if len(events) == 2:
        return PHRASES["placed_twice"].format(**names)
    names["When"] = capital(rng.choice(PHRASES["times"]))
    return rng.choice(PHRASES["placed"]).format(**names)
