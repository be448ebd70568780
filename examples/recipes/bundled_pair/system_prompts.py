"""Chats under a system prompt: it gives a name, wants a form of answer, or nothing special."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from everyday import HONEST, HOW_TO, MONTHS
from later_turns import Turn, casual, outside_question, question
from read_words import read_words
from sample import Chat, Message, assistant, user
from wording import invented_name

PHRASES = read_words("system_prompts")

# Makes the answer that a system prompt asks for; None if the question does not fit it.
Form = Callable[[Turn], Turn | None]


def as_always(turn: Turn) -> Turn | None:
    """The answer without a special form."""
    return turn


def in_one_line(turn: Turn) -> Turn | None:
    """Steps and conclusion in one line, instructions as one sentence, functions of one line."""
    said = turn.said
    answer = " ".join(turn.answer.split())
    if turn.topic == "how to":
        what = next(what for what, steps in HOW_TO.items() if steps == turn.about)
        *steps, last = turn.about
        said = f"To {what.replace('my ', 'your ')}, {', '.join(steps)}, then {last}."
    elif turn.topic == "function":
        _, name, arguments, _, body, _, _ = turn.about
        if len(body) > 1:
            return None
        said = f"def {name}({arguments}): {body[0]}"
    if said != turn.said:
        return replace(turn, answer=said, said=said)
    return None if "\n" in said else replace(turn, answer=answer)


def numbers_as(words: Sequence[str]) -> Form:
    """The resulting number in words of a language."""

    def form(turn: Turn) -> Turn | None:
        if not re.search(r"\d", turn.answer) or turn.said == HONEST:
            return turn
        places = [*re.finditer(rf"\b{re.escape(turn.short)}\b", turn.said)] if turn.short else []
        if not places or not turn.short.isdigit() or int(turn.short) > 100:
            return None
        start, end = places[-1].span()
        word = words[int(turn.short)]
        said = f"{turn.said[:start]}{word if start else word.capitalize()}{turn.said[end:]}"
        return replace(turn, answer=turn.answer.removesuffix(turn.said) + said, said=said)

    return form


def special(rng: Random) -> tuple[str, Form]:
    """An instruction for the form of answers, and what makes answers of that form."""
    if rng.random() < 0.35:
        return rng.choice(PHRASES["one_line"]), in_one_line
    language, words = rng.choice(list(PHRASES["numbers"].items()))
    return rng.choice(PHRASES["language"]).format(language), numbers_as(words)


def some_name(rng: Random) -> str:
    """A first name, or an invented one."""
    return rng.choice(PHRASES["names"]) if rng.random() < 0.6 else invented_name(rng)


def plain(rng: Random, count: int) -> list[str]:
    """Different sentences that ask for nothing special."""
    date = f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(2024, 2031)}"
    name, city = some_name(rng), rng.choice(PHRASES["cities"])
    sentences = rng.sample(PHRASES["plain"], count)
    return [text.format(date=date, name=name, city=city) for text in sentences]


def instructions(rng: Random, orders: list[str]) -> str:
    """The system prompt: the orders, half of the time somewhere within other sentences."""
    count = rng.randint(1, 12) if not orders else rng.choice((0, 0, 0, 0, 1, 2, 3, 4, 6, 8))
    before = rng.randint(0, count)
    sentences = plain(rng, count)
    lines = [*sentences[:before], *orders, *sentences[before:]]
    joint = rng.choice((" ", " ", " ", "\n", "\n- "))
    text = joint.join(lines)
    if joint == "\n- " and len(lines) > 1:
        text = f"- {text}"
    return text.rstrip(".") if orders and rng.random() < 0.15 else text


def about_name(rng: Random, name: str, form: Form) -> Turn:
    """Ask for the name that the system prompt gave."""
    ask, said = casual(rng, rng.choice(PHRASES["ask_name"])), f"My name is {name}."
    thinking = f"The system prompt says that my name is {name}."
    turn = Turn(ask, thinking, said, said, short=name)
    return form(turn) or turn


def fitting(rng: Random, form: Form, name: str) -> Turn:
    """A question that can be answered in this form, and whose answer the prompt does not change."""
    while True:
        if rng.random() < 0.08:
            turn = outside_question(rng)
            if not set(PHRASES["told"]).isdisjoint(re.findall(r"\w+", turn.ask.lower())):
                continue
        else:
            turn = question(rng)
            if name and re.search("your name|who are you", turn.ask.lower()):
                continue
        found = form(turn)
        if found is turn and form is not as_always and rng.random() < 0.6:
            continue  # mostly questions whose answer the form changes
        if found:
            return found


def system_prompts(rng: Random) -> Chat:
    """A chat of one to three questions under a system prompt."""
    name, form = "", as_always
    orders: list[str] = []
    kind = rng.choices(("plain", "name", "form", "both"), (40, 15, 36, 9))[0]
    if kind in ("name", "both"):
        name = some_name(rng)
        orders.append(rng.choice(PHRASES["name"]).format(name))
    if kind in ("form", "both"):
        order, form = special(rng)
        orders.append(order)
    rng.shuffle(orders)
    system = instructions(rng, orders)
    count = rng.choice((1, 1, 2, 3))
    turns = [fitting(rng, form, name) for _ in range(count)]
    if name and rng.random() < 0.85:
        turns[rng.randrange(count)] = about_name(rng, name, form)
    thinking = rng.random() < 0.2
    messages: list[Message] = [{"role": "system", "content": system}]
    for turn in turns:
        said = assistant(turn.said, turn.thinking) if thinking else assistant(turn.answer)
        messages += [user(turn.ask), said]
    return Chat(messages, thinking=thinking)
