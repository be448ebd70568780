"""Chats whose second and third question only make sense after what was said before."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from arithmetic import arithmetic
from everyday import FACTS, HONEST, HOW_TO, SMALL_TALK, everyday
from functions import answered, renamed
from functions import question as function_question
from lists import PLACES, lists
from outside import outside
from read_words import read_words
from sample import Chat, Message, Sample, assistant, is_held_out, user
from sums import (
    FACTOR_LIMIT,
    MINUS,
    PLUS,
    SUM_LIMIT,
    TIMES,
    add,
    calculation,
    divide,
    multiply,
    subtract,
)
from wording import NUMBERS, invented_word

PHRASES = read_words("later_turns")
KIND_OF = {answer: kind for kind, table in FACTS.items() for answer, _ in table.values()}
# A day or month may also be asked for in the other direction.
TURNED = {f"{what} {word}" for what in ("day", "month") for word in ("after", "before")}


@dataclass(frozen=True, slots=True)
class Turn:
    """A question with its answer, and what a follow-up can ask about.

    `said` is the answer after thinking. `about`: what the topic's follow-ups need. `conclusion` and
    `short`: what is confirmed or said briefly; empty if that makes no sense. `by`: the follow-up
    that only said the last answer in other words.
    """

    ask: str
    thinking: str
    answer: str
    said: str
    topic: str = ""
    about: Any = None
    conclusion: str = ""
    short: str = ""
    by: str = ""


def casual(rng: Random, text: str) -> str:
    """The text with or without a capital and a final mark."""
    way = rng.random()
    if way < 0.5:
        text = text[0].upper() + text[1:]
    elif way > 0.85:
        text = text.lower()
    return text.rstrip(".?!") if rng.random() < 0.4 else text


def said(rng: Random, kind: str, *words: object) -> str:
    """A phrase of this kind with these words in it, as users may write it."""
    return casual(rng, rng.choice(PHRASES[kind]).format(*words))


def bare(short: str) -> str:
    """A number as it is, a word as a sentence."""
    return short if short[-1].isdigit() else f"{short[0].upper()}{short[1:]}."


def how_to_steps(sample: Sample) -> tuple[str, list[str]] | None:
    """What instructions are for, and their steps."""
    found = re.match(r"Here is a good way to (.*):\n", sample.answer)
    return (found[1], HOW_TO[found[1]]) if found else None


def turn(sample: Sample, about: Any = None) -> Turn:
    """A question as it is, with what follow-ups can ask about its answer."""
    steps = how_to_steps(sample)
    topic, conclusion = "", sample.conclusion
    if sample.family == "functions":
        topic, conclusion = "function", ""
    elif sample.answer in SMALL_TALK.values():
        topic, conclusion = "small talk", ""
    elif steps:
        topic, about, conclusion = "how to", steps[1], ""
    elif sample.answer in KIND_OF:
        topic, about = "fact", KIND_OF[sample.answer]
    elif sample.family == "arithmetic" and 0 <= int(sample.short or -1) < SUM_LIMIT:
        topic, about = "number", int(sample.short)
    elif re.fullmatch(r"\w+(, \w+)+", conclusion):
        topic, about = "list", conclusion.split(", ")
    return Turn(
        sample.prompt,
        sample.thinking,
        sample.answer,
        sample.conclusion,
        topic,
        about,
        conclusion,
        sample.short,
    )


def any_question(rng: Random) -> Turn:
    """A question of the four families."""
    if rng.random() < 0.15:
        ask, task = function_question(rng)
        return turn(answered(ask, task), task)
    return turn(rng.choices((arithmetic, lists, everyday), (5, 3, 4))[0](rng))


def question(rng: Random) -> Turn:
    """A question that is not held out by itself."""
    while True:
        found = any_question(rng)
        if not is_held_out(found.ask):
            return found


def outside_question(rng: Random) -> Turn:
    """A question that the model cannot answer, not held out by itself."""
    sample = outside(rng)
    while sample.held_out:
        sample = outside(rng)
    topic = "honest" if sample.answer == HONEST else ""
    return Turn(sample.prompt, sample.thinking, sample.answer, sample.conclusion, topic)


def reply(before: Turn, ask: str, thinking: str, answer: str, **other: Any) -> Turn:
    """A follow-up answered by one sentence, which is its conclusion unless `other` names one."""
    known = {"conclusion": answer, "short": "", "by": "", **other}
    return replace(before, ask=ask, thinking=thinking, answer=answer, said=answer, **known)


FollowUp = Callable[[Random, Turn], Turn | None]


def calculate(rng: Random, last: Turn) -> Turn:
    """Calculate on with the last result."""
    a = last.about
    n = rng.randint(2, FACTOR_LIMIT) if rng.random() < 0.5 else rng.randint(1, 99)
    factor = rng.randint(2, FACTOR_LIMIT)
    operations = {
        "plus": (n, a + n, f"We add {n}.", add(a, n), f"{a} plus {n} is {a + n}."),
        "minus": (n, a - n, f"We subtract {n}.", subtract(a, n), f"{a} minus {n} is {a - n}."),
        "double": (2, a + a, "We add it to itself.", add(a, a), f"Twice {a} is {a + a}."),
    }
    if 1 < a <= FACTOR_LIMIT:
        steps, result = multiply(a, factor), a * factor
        words = f"We multiply by {factor}."
        operations["times"] = (factor, result, words, steps, f"The answer is {result}.")
    if a % 2 == 0 and 0 < a <= 2 * FACTOR_LIMIT:
        half = a // 2
        operations["half"] = (2, half, "We divide by 2.", divide(a, 2), f"Half of {a} is {half}.")
    names = [name for name, (_, result, *_) in operations.items() if 0 <= result < SUM_LIMIT]
    name = rng.choices(names, [3 if name in ("plus", "minus") else 2 for name in names])[0]
    n, result, words, steps, conclusion = operations[name]
    ask = casual(rng, rng.choice(PHRASES["sums"][name]).format(n=n))
    thinking = f"The last result was {a}. {words} {steps}"
    follow = reply(last, ask, thinking, conclusion, about=result, short=str(result))
    return replace(follow, answer=f"{steps}\n\n{conclusion}")


def another_sum(rng: Random, last: Turn) -> Turn:
    """Ask for another calculation, in few words."""
    operation = rng.choice((PLUS, MINUS, TIMES))
    core = rng.choice((f"{{a}} {operation.word} {{b}}", "{a} {sign} {b}"))
    sample = calculation(rng, operation, rng.choice(PHRASES["another_sum"]).replace("{}", core))
    found = turn(sample)
    return replace(found, ask=casual(rng, found.ask))


def guess(rng: Random, last: Turn) -> Turn:
    """Say a number; it is right or not."""
    wrong = max(0, last.about + rng.choice((-10, -2, -1, 1, 2, 10)))
    right = rng.random() < 0.4 or wrong == last.about
    ask = said(rng, "guess", last.about if right else wrong)
    return same(last, ask, f"{'Yes' if right else 'No'}. {last.conclusion}", "sure")


def onward(rng: Random, last: Turn) -> Turn | None:
    """Ask for the day or month after or before the last answer."""
    if last.about not in TURNED or last.by:
        return None
    word = last.about.split()[1]
    answer, short = FACTS[last.about][last.short]
    ask = said(rng, "onward", word)
    thinking = f"The last answer was {last.short}."
    return reply(last, ask, thinking, answer, about=last.about, short=short)


def other_fact(rng: Random, last: Turn) -> Turn | None:
    """Ask the last question about another word."""
    kind = last.about
    what, _, word = kind.partition(" ")
    if kind in TURNED:
        word = rng.choice(("after", "before"))
        kind = f"{what} {word}"
    name, (answer, short) = rng.choice(list(FACTS[kind].items()))
    if answer == last.conclusion:
        return None
    if kind in TURNED:
        phrase, asked = rng.choice(PHRASES["around"]), f"{word} {name}"
        thinking = f"The question is now for the {what} {asked}."
    else:
        phrase, asked = rng.choice(PHRASES["other_fact"][kind]), name
        thinking = f"The question is the last one, now for {asked}."
    return reply(last, casual(rng, phrase.format(asked)), thinking, answer, about=kind, short=short)


def one_step(rng: Random, last: Turn) -> Turn:
    """Ask for one step of instructions, or for their number."""
    steps = last.about
    if rng.random() < 0.25:
        ask, answer = said(rng, "steps"), f"There are {len(steps)} steps."
        return reply(last, ask, "We count the steps.", answer, conclusion="")
    place = rng.randrange(len(steps))
    word = PLACES[place]
    if place == len(steps) - 1 and rng.random() < 0.7:
        word = "last"
    ask = said(rng, "step", word)
    answer = f"Step {place + 1}: {steps[place][0].upper()}{steps[place][1:]}."
    return reply(last, ask, f"The user asks for the {word} step.", answer, conclusion="")


def other_way(rng: Random, last: Turn) -> Turn:
    """Turn the last list around."""
    back = last.about[::-1]
    ask = said(rng, "other_way")
    thinking = f"The last list was {', '.join(last.about)}."
    return reply(last, ask, thinking, ", ".join(back), about=back)


def one_item(rng: Random, last: Turn) -> Turn:
    """Ask for an item of the last list, or for their number."""
    items, listed = last.about, f"The last list was {', '.join(last.about)}."
    if rng.random() < 0.3:
        answer = f"There are {len(items)}."
        return reply(last, said(rng, "length"), listed, answer, short=str(len(items)))
    word, item = rng.choice(
        (*zip(PLACES, items, strict=False), ("first", items[0]), ("last", items[-1]))
    )
    ask = said(rng, "item", word)
    return reply(last, ask, listed, f"The {word} is {item}.", short=item)


def new_name(rng: Random) -> str:
    """A name for a function, of two or three words."""
    if rng.random() < 0.2:
        verb = rng.choice(PHRASES["verbs"])
        return f"{verb}_{invented_word(rng)}"
    parts = [rng.choice(PHRASES[kind]) for kind in ("verbs", "nouns", "endings")]
    first, end = rng.choice(((0, 2), (1, 3), (0, 3)))
    return "_".join(parts[first:end])


def rename(rng: Random, last: Turn) -> Turn:
    """Give the last function another name."""
    name = new_name(rng)
    task = renamed(last.about, name)
    ask = said(rng, "rename", name)
    thinking = f"The function stays the same, its name is now {name}."
    answer = answered(ask, task).answer
    return reply(last, ask, thinking, answer, about=task, conclusion="")


def about_function(rng: Random, last: Turn) -> Turn:
    """Ask for the name or arguments of the last function, or what its example returns."""
    _, name, arguments, _, _, call, value = last.about
    takes = f"It takes {arguments or 'no arguments'}."
    kind, answer, thinking = rng.choice(
        (
            ("arguments", takes, f"It is {name}({arguments})."),
            ("value", f"It returns `{value}`.", f"The example is {name}{call}."),
            ("title", f"It is called {name}.", f"It is {name}({arguments})."),
        )
    )
    return reply(last, said(rng, kind), thinking, answer, conclusion="")


def insist(rng: Random, last: Turn) -> Turn:
    """Ask again for what the model cannot do."""
    ask = said(rng, "insist")
    return reply(last, ask, "I still do not know this.", HONEST, conclusion="")


def same(last: Turn, ask: str, answer: str, by: str) -> Turn:
    """A follow-up that says the last answer in other words; the next one can ask about it, too."""
    thinking = f"The last answer was: {last.conclusion or last.said}"
    return reply(last, ask, thinking, answer, conclusion=last.conclusion, short=last.short, by=by)


def briefly(rng: Random, last: Turn) -> Turn | None:
    """Ask for the last answer as one word or number."""
    if not last.short or last.by in ("briefly", "thanks"):
        return None
    number = int(last.short) if last.short.isdigit() else None
    if rng.random() < 0.4:
        if number is not None and number > 100:
            return None
        word = NUMBERS[number] if number is not None else last.short
        return same(last, said(rng, "one_word"), bare(word), "briefly")
    kind = "only_number" if number is not None and rng.random() < 0.5 else "briefly"
    return same(last, said(rng, kind), bare(last.short), "briefly")


def sure(rng: Random, last: Turn) -> Turn | None:
    """Doubt the last answer."""
    if not last.conclusion or last.by in ("sure", "thanks"):
        return None
    return same(last, said(rng, "sure"), f"Yes. {last.conclusion}", "sure")


def again(rng: Random, last: Turn) -> Turn | None:
    """Ask for the last answer once more."""
    if not last.conclusion or last.by:
        return None
    return same(last, said(rng, "again"), f"Again: {last.conclusion}", "again")


def thanks(rng: Random, last: Turn) -> Turn | None:
    """Thank for the last answer."""
    if last.by == "thanks":
        return None
    ask = rng.choice(PHRASES["thanks"])
    follow = same(last, ask, SMALL_TALK[ask], "thanks")
    return replace(follow, thinking="The user thanks me.")


BY_TOPIC: dict[str, tuple[FollowUp, ...]] = {
    "number": (calculate, calculate, calculate, another_sum, guess),
    "fact": (other_fact, other_fact, onward),
    "how to": (one_step,),
    "list": (other_way, one_item),
    "function": (rename, about_function),
    "honest": (insist,),
}
GENERAL: tuple[FollowUp, ...] = (briefly, briefly, briefly, sure, sure, again, again, thanks)


def follow_up(rng: Random, last: Turn) -> Turn:
    """A question about the last answer: about its topic, or one that fits any answer."""
    special = BY_TOPIC.get(last.topic, ())
    if last.by == "thanks" and (not special or rng.random() < 0.5):
        return first_question(rng)
    while True:
        choices = special if special and rng.random() < 0.6 else GENERAL
        found = rng.choice(choices)(rng, last)
        if found:
            return found


def first_question(rng: Random) -> Turn:
    """A question with an answer that can be talked about."""
    while True:
        found = question(rng)
        if found.topic != "small talk":
            return found


def back(rng: Random, first: Turn) -> Turn:
    """A follow-up to the first question, after another one."""
    while True:
        found = follow_up(rng, first)
        if found.by != "thanks":
            back = rng.choice(PHRASES["back"])
            return replace(found, ask=f"{back} {found.ask[0].lower()}{found.ask[1:]}")


def detour(rng: Random, first: Turn) -> list[Turn]:
    """A question about something else, and one that follows on it or on the first."""
    if rng.random() < 0.5:
        other = first_question(rng)
        return [other, follow_up(rng, other)]
    other = outside_question(rng)
    if other.topic == "honest" and rng.random() < 0.5:
        return [other, insist(rng, other)]
    return [other, back(rng, first)]


def later_turns(rng: Random) -> Chat:
    """A chat of two or three questions that build on each other."""
    thinking = rng.random() < 0.25
    turns = [first_question(rng)]
    if rng.random() < 0.25:
        turns += detour(rng, turns[0])
    else:
        for _ in range(rng.choice((1, 2))):
            turns.append(follow_up(rng, turns[-1]))
    messages: list[Message] = []
    for each in turns:
        said = assistant(each.said, each.thinking) if thinking else assistant(each.answer)
        messages += [user(each.ask), said]
    judged = tuple(range(3, len(messages), 2))
    return Chat(messages, thinking=thinking, judged=judged)
