"""Realistic tools with requests in ordinary English, in which the model has to find the arguments.

The tools are in words/tool_catalogue.toml, which says what an entry has.
"""

import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from everyday import MONTHS
from read_words import read_words
from tool_schemas import Tool, schema
from tool_tasks import Step, Task, a_file, a_folder, a_number, a_person, a_word, an_hour
from wording import invented_name, invented_word

Make = Callable[[Random], Task]
PHRASES = read_words("tool_catalogue")
ADD = read_words("tool_schemas")["add"]
REAL: dict[str, list[str]] = PHRASES["values"]
INVENTED = 0.33  # share of the names and words that no language has
SLOT = re.compile(r"\{(\w+)\}")
FILLED = re.compile(r"@(\w+)|(\d+)\.\.(\d+)|!(\w+)|\{(\w+)\}")
COMPUTED: dict[str, Callable[..., Any]] = {
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": lambda a, b: round(a / b, 2) if b else "error",
    "average": lambda a, b: (a + b) / 2,
    "larger": max,
    "smaller": min,
    "remainder": lambda a, b: a % b,
    "percent": lambda a, b: round(a * b / 100, 2),
    "square": lambda a: a * a,
    "double": lambda a: a * 2,
    "reverse": lambda text: text[::-1],
    "upper": str.upper,
    "length": len,
    "words": lambda text: len(text.split()),
    "letters": lambda word, letter: word.count(letter),
}
OPERATIONS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
TOTALS = {"add": "sum", "subtract": "difference", "multiply": "product"}


# Values


def of_kind(rng: Random, kind: str) -> Any:
    """A value of a kind, a third of them invented; two numbers with dots between are a range."""
    if ".." in kind:
        least, most = kind.split("..")
        return rng.randint(int(least), int(most))
    if kind in REAL:
        share = INVENTED / 3 if kind in PHRASES["closed"] else INVENTED
        if rng.random() > share:
            return rng.choice(REAL[kind])
        words = [invented_word(rng, 1, 2) for _ in range(rng.choice((1, 1, 1, 2)))]
        return " ".join(word.capitalize() if kind in PHRASES["named"] else word for word in words)
    return KINDS[kind](rng)


def a_name(rng: Random) -> str:
    """A person's name, now and then with a last name."""
    return f"{a_person(rng)} {invented_name(rng)}" if rng.random() < 0.12 else a_person(rng)


def said(rng: Random) -> str:
    """A text of two to six words."""
    if rng.random() < 0.2:
        return " ".join(a_word(rng) for _ in range(rng.randint(2, 4)))
    words = {"a": a_word(rng), "b": a_word(rng), "p": a_person(rng), "h": an_hour(rng)}
    return rng.choice(PHRASES["said"]).format(**words, n=rng.randint(2, 99))


def a_date(rng: Random) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2020, 2031)
    name = MONTHS[month - 1]
    return rng.choice((f"{year}-{month:02}-{day:02}", f"{day} {name}", f"{name} {day}"))


def an_email(rng: Random) -> str:
    return f"{a_person(rng).lower()}@{a_word(rng)}.{rng.choice(('com', 'org', 'net', 'de'))}"


def a_url(rng: Random) -> str:
    end = rng.choice(("", "", f"/{a_word(rng)}", f"/{a_word(rng)}/{rng.randint(1, 99)}"))
    return f"https://{rng.choice(('', 'www.'))}{a_word(rng)}.{rng.choice(('com', 'org'))}{end}"


def an_amount(rng: Random) -> int | float:
    """An amount of money, mostly whole."""
    whole = rng.randint(1, 10 ** rng.choice((1, 2, 3, 4)))
    return whole if rng.random() < 0.7 else whole + rng.choice((0.5, 0.25, 0.75, 0.99))


def a_code(rng: Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    return f"{letters}{rng.choice(('', '-'))}{rng.randint(10, 9999)}"


def a_query(rng: Random) -> str:
    table = of_kind(rng, "table")
    forms = (
        f"SELECT * FROM {table}",
        f"SELECT name FROM {table} LIMIT {rng.randint(1, 50)}",
        f"SELECT COUNT(*) FROM {table}",
        f"SELECT {a_word(rng)} FROM {table} WHERE id = {rng.randint(1, 999)}",
    )
    return rng.choice(forms)


KINDS: dict[str, Callable[[Random], Any]] = {
    "person": a_name,
    "file": a_file,
    "folder": a_folder,
    "word": a_word,
    "text": said,
    "hour": an_hour,
    "date": lambda rng: a_date(rng) if rng.random() < 0.6 else of_kind(rng, "day"),
    "fulldate": a_date,
    "amount": an_amount,
    "number": a_number,
    "email": an_email,
    "url": a_url,
    "code": a_code,
    "query": a_query,
    "digits": lambda rng: f"0{rng.randint(100, 999)} {rng.randint(1000, 99999)}",
    "letter": lambda rng: rng.choice("aeiourstlnm"),
    "onoff": lambda rng: rng.random() < 0.5,
}


# Entries


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument: its possible names, of which the first is its slot's, and its kind of value."""

    names: Sequence[str]
    kind: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool of the catalogue: words/tool_catalogue.toml explains its parts.

    `key` and `what` are empty for a tool that does something and confirms it.
    """

    names: Sequence[str]
    texts: Sequence[str]
    arguments: Sequence[Argument] = ()
    orders: Sequence[str] = ()
    questions: Sequence[str] = ()
    results: Sequence[str] = ()
    key: str = ""
    what: str = ""
    more: Sequence[str] = ()
    sink: str = ""
    sinks: Sequence[str] = ()

    @property
    def counts(self) -> bool:
        """Whether it finds a number for its only argument, and there are words to compare it."""
        return bool(self.more)

    @property
    def tells(self) -> bool:
        """Whether naming what it finds tells all that it has to be asked with."""
        needed = {each.names[0] for each in self.arguments if not each.optional}
        return bool(self.what) and not self.sink and needed <= slots(self.what)


def an_argument(text: str) -> Argument:
    names, kind = text.split(":")
    return Argument(names.lstrip("?").split("/"), kind, names.startswith("?"))


def an_entry(tool: dict[str, Any]) -> Entry:
    """The entry of a tool in the file."""
    return Entry(**{**tool, "arguments": [an_argument(each) for each in tool.get("arguments", ())]})


CATALOGUE = [an_entry(tool) for tool in PHRASES["tools"]]


# From an entry to a tool


@dataclass(frozen=True, slots=True)
class Chosen:
    """An entry with the tool that was made of it, and the tool's argument for each slot."""

    entry: Entry
    tool: Tool
    keys: dict[str, str]


def camel(text: str) -> str:
    """snake_case as camelCase."""
    first, *rest = text.split("_")
    return first + "".join(word.capitalize() for word in rest)


def json_type(rng: Random, kind: str) -> str:
    """The JSON type of a kind's values."""
    if kind == "onoff":
        return "boolean"
    if kind == "amount":
        return "number"
    if ".." in kind or kind == "number":
        return rng.choice(("integer", "integer", "number"))
    return "string"


def choose(rng: Random, entry: Entry) -> Chosen:
    """A tool of this entry, with one of its names, and its arguments' names in one of its sets."""
    place, cased = rng.randrange(6), rng.random() < 0.1
    keys = {each.names[0]: each.names[place % len(each.names)] for each in entry.arguments}
    if cased:
        keys = {slot: camel(key) for slot, key in keys.items()}
    kinds = {keys[each.names[0]]: json_type(rng, each.kind) for each in entry.arguments}
    optional = sum(each.optional for each in entry.arguments)
    tool = schema(rng, rng.choice(entry.names), rng.choice(entry.texts), kinds, optional)
    return Chosen(entry, tool, keys)


# From a tool to tasks


def spoken(value: Any) -> str:
    """A value as requests say it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def fill(template: str, values: dict[str, Any]) -> str:
    """The template with its slots filled."""
    return plain_days(SLOT.sub(lambda found: spoken(values[found[1]]), template))


def plain_days(text: str) -> str:
    """The text without "on" before today and tomorrow."""
    return re.sub(r"\b[Oo]n (today|tomorrow)\b", r"\1", text)


def some_values(rng: Random, entry: Entry) -> dict[str, Any]:
    """A value for each slot, no two the same."""
    while True:
        values = {each.names[0]: of_kind(rng, each.kind) for each in entry.arguments}
        if len({spoken(value) for value in values.values()}) == len(values):
            return values


def outcome(rng: Random, template: str, values: dict[str, Any]) -> str | int | float:
    """What a result's template gives: a number if it is one number, else text."""
    if template.startswith("!"):
        return COMPUTED[template[1:]](*values.values())
    if re.fullmatch(r"\d+\.\.\d+", template):
        return of_kind(rng, template)

    def filled(found: re.Match[str]) -> str:
        if found[1]:
            return spoken(of_kind(rng, found[1]))
        return str(of_kind(rng, found[0])) if found[2] else spoken(values[found[5]])

    return plain_days(FILLED.sub(filled, template))


def shown(rng: Random, key: str, value: Any, arguments: dict[str, Any]) -> str:
    """A found value as programs give it: alone, in JSON, or after its name."""
    dice = rng.random()
    if dice < 0.55 or str(value).startswith(("{", "[")):
        return str(value)
    if dice < 0.75:
        return json.dumps({rng.choice((key, key, "result", "value")): value})
    if dice < 0.85:
        return json.dumps({**arguments, key: value})
    be = "are" if key.endswith("s") and key != "status" else "is"
    return rng.choice((f"{key}: {value}", f"{key} = {value}", f"The {key} {be} {value}."))


def slots(template: str) -> frozenset[str]:
    return frozenset(SLOT.findall(template))


def call_arguments(chosen: Chosen, values: dict[str, Any], used: frozenset[str]) -> dict[str, Any]:
    """The call's arguments, in the schema's order."""
    return {chosen.keys[slot]: value for slot, value in values.items() if slot in used}


def low(rng: Random, text: str) -> str:
    """The text, now and then without its first capital."""
    word = text.split()[0]
    if rng.random() < 0.2 and word not in ("I", "I'm", "I'd", "I'll") and word[1:].islower():
        return text[0].lower() + text[1:]
    return text


def catalogue_task(rng: Random, chosen: Chosen) -> Task:
    """A request for a tool of the catalogue."""
    entry, values = chosen.entry, some_values(rng, chosen.entry)
    order = rng.choice(entry.orders)
    used = slots(order)
    orders = [each for each in entry.orders if slots(each) == used]
    asked = [each for each in entry.questions if slots(each) == used]
    sentences = [low(rng, each) if each[0] != "{" else each for each in asked]
    polite = rng.sample(PHRASES["polite"], 2)
    sentences += [low(rng, each.replace("{}", rng.choice(orders))) for each in polite]
    questions = tuple(fill(each, values) for each in sentences)
    step, report = answered(rng, chosen, values, used)
    return Task(fill(order, values), questions, (step,), report)


def answered(
    rng: Random, chosen: Chosen, values: dict[str, Any], used: frozenset[str]
) -> tuple[Step, str]:
    """The call for these values, and what is reported of it."""
    entry, arguments = chosen.entry, call_arguments(chosen, values, used)
    if not entry.what:
        fitting = [each for each in entry.results if slots(each) <= used]
        template = rng.choice((*fitting, *fitting, *rng.sample(PHRASES["generic"], 2)))
        result = str(outcome(rng, template, values))
        return Step(chosen.tool, arguments, result), f"Done. The tool says: {result}"
    value = outcome(rng, rng.choice(entry.results), values)
    result = shown(rng, entry.key, value, arguments)
    what = f"The {fill(entry.what, values)}"
    report = f"{what} {value}" if what.endswith(":") else f"{what} is {value}."
    return Step(chosen.tool, arguments, result), report


# Tasks of two and three calls

ADDS = Entry(
    ADD["names"],
    ADD["texts"],
    [Argument(names, "number", False) for names in zip(*ADD["arguments"], strict=True)],
)
HELPERS = {
    "add": [ADDS],
    "subtract": [entry for entry in CATALOGUE if entry.results == ["!subtract"]],
    "multiply": [entry for entry in CATALOGUE if entry.results == ["!multiply"]],
}


def lookup_for(rng: Random, lookup: Chosen, value: str, found: Any) -> Step:
    """The lookup's call for its only argument."""
    arguments = {next(iter(lookup.keys.values())): value}
    return Step(lookup.tool, arguments, shown(rng, lookup.entry.key, found, arguments))


def wordings(kind: str, words: dict[str, Any]) -> tuple[list[str], tuple[str, ...]]:
    """The orders and the questions of a kind of task."""
    phrases = PHRASES["wordings"][kind]
    every = [(each, re.sub(r" (?=[ ?.])", "", fill(each, words))) for each in phrases]
    orders = [text for each, text in every if each[0].islower()]
    return orders, tuple(text for each, text in every if not each[0].islower())


def and_then(rng: Random, lookup: Chosen, helper: Chosen, operation: str) -> Task:
    """Look up two numbers, or one, and "add", "subtract" or "multiply" with the helper."""
    slot = lookup.entry.arguments[0].names[0]
    ranges = [each for each in lookup.entry.results if re.fullmatch(r"\d+\.\.\d+", each)]
    first, second = (some_values(rng, lookup.entry)[slot] for _ in range(2))
    a, b = (int(of_kind(rng, ranges[0])) for _ in range(2))
    if first == second or a == b:
        return and_then(rng, lookup, helper, operation)
    a, b = (max(a, b), min(a, b)) if operation == "subtract" else (a, b)
    x, y = (f"the {fill(lookup.entry.what, {slot: value})}" for value in (first, second))
    more, at, end = lookup.entry.more
    if operation == "add":
        more = re.sub(r" does$", " do", more)
    words = {"x": x, "y": y, "more": more, "end": end}
    words |= {"at": fill(at, {slot: first}), "too": fill(at, {slot: second})}
    kind = operation
    if rng.random() < (0.7 if operation == "multiply" else 0.25):
        kind, b = f"{operation} one", rng.randint(2, 99)
        a = a + b if operation == "subtract" else a
        steps = [lookup_for(rng, lookup, first, a)]
    else:
        steps = [lookup_for(rng, lookup, first, a), lookup_for(rng, lookup, second, b)]
        if operation == "subtract" and rng.random() < 0.25:
            kind, steps = "subtract swapped", steps[::-1]
    orders, questions = wordings(kind, {**words, "n": b})
    total = OPERATIONS[operation](a, b)
    arguments = dict(zip(helper.tool.arguments, (a, b), strict=True))
    steps.append(Step(helper.tool, arguments, shown(rng, TOTALS[operation], total, arguments)))
    return Task(rng.choice(orders), questions, tuple(steps), f"The {TOTALS[operation]} is {total}.")


def pass_on(rng: Random, lookup: Chosen, sink: Chosen) -> Task:
    """Find something out and give it to another tool: send it, note it, translate it."""
    values = some_values(rng, lookup.entry)
    used = slots(lookup.entry.what)
    found = outcome(rng, rng.choice(lookup.entry.results), values)
    arguments = call_arguments(lookup, values, used)
    first = Step(lookup.tool, arguments, shown(rng, lookup.entry.key, found, arguments))
    others = some_values(rng, sink.entry)
    others[sink.entry.sink] = str(found)
    phrase = rng.choice(sink.entry.sinks)
    x = f"the {fill(lookup.entry.what, values)}".removesuffix(" says:")
    second, report = answered(rng, sink, others, slots(phrase) | {sink.entry.sink})
    passed = fill(phrase, others)
    words = {"x": x, "sink": passed, "direct": re.sub(r"\bit\b", lambda _: x, passed, count=1)}
    questions = tuple(fill(each, words) for each in PHRASES["passed_questions"])
    return Task(fill(rng.choice(PHRASES["passed"]), words), questions, (first, second), report)


def catalogue_chain(rng: Random) -> tuple[tuple[Tool, ...], Make]:
    """Two tools of which one needs the other's result, and what makes tasks for them."""
    if rng.random() < 0.6:
        operation = rng.choice(("add", "subtract", "subtract", "multiply"))
        lookup = choose(rng, rng.choice([entry for entry in CATALOGUE if entry.counts]))
        other = choose(rng, rng.choice(HELPERS[operation]))
        make = partial(and_then, lookup=lookup, helper=other, operation=operation)
    else:
        lookup = choose(rng, rng.choice([entry for entry in CATALOGUE if entry.tells]))
        other = choose(rng, rng.choice([entry for entry in CATALOGUE if entry.sink]))
        make = partial(pass_on, lookup=lookup, sink=other)
    return (lookup.tool, other.tool), make
