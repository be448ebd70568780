"""The training text of the bundled pair; all of it is generated here from a seed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from arithmetic import arithmetic
from everyday import everyday
from functions import functions
from later_turns import later_turns
from lists import lists
from outside import ASKED, outside
from outside_words import framed, phrased
from sample import Chat, Message, Sample, assistant, is_held_out, user
from system_prompts import instructions, system_prompts
from tool_chats import request_without_tools, tool_chat

FAMILIES: dict[str, Callable[[Random], Sample]] = {
    "arithmetic": arithmetic,
    "lists": lists,
    "functions": functions,
    "everyday": everyday,
}
WEIGHTS = (4, 8, 2, 3)  # shares of the families
OUTSIDE = 0.3  # share of the questions that are outside the world of the families
THINKING = 0.2


def samples(
    seed: int, *, held_out: bool = False, weights: Sequence[int] = WEIGHTS
) -> Iterator[Sample]:
    """An endless stream of samples, all held out or none; `weights` are the families' shares."""
    rng = Random(seed)
    while True:
        sample = rng.choices(list(FAMILIES.values()), weights)[0](rng)
        if sample.held_out == held_out:
            yield sample


def held_out(count: int, seed: int = 7) -> list[Sample]:
    """`count` different held-out samples, equally many of each family."""
    chosen: list[Sample] = []
    for number, family in enumerate(FAMILIES):
        share = count // len(FAMILIES) + (number < count % len(FAMILIES))
        unique: dict[str, Sample] = {}
        only = [int(name == family) for name in FAMILIES]
        for tries, sample in enumerate(samples(seed, held_out=True, weights=only)):
            if len(unique) == share or tries > 200 * count:
                break
            unique.setdefault(sample.prompt, sample)
        chosen += unique.values()
    return chosen


def question(rng: Random) -> Sample:
    """A question of any kind, known or outside; both may stand within other sentences."""
    if rng.random() < OUTSIDE:
        return request_without_tools(rng) if rng.random() < 0.1 else outside(rng)
    sample = rng.choices(list(FAMILIES.values()), WEIGHTS)[0](rng)
    prompt = framed(rng, phrased(rng, sample.prompt), ASKED["statement"])
    return replace(sample, prompt=prompt)


def questions(rng: Random) -> Chat:
    """A chat of one to four questions that have nothing to do with each other."""
    thinking = rng.random() < THINKING
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": instructions(rng, [])})
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        sample = question(rng)
        messages.append(user(sample.prompt))
        if thinking:
            messages.append(assistant(sample.conclusion, sample.thinking))
        else:
            messages.append(assistant(sample.answer))
    return Chat(messages, thinking=thinking)


CHATS: dict[Callable[[Random], Chat], int] = {questions: 40, later_turns: 14, system_prompts: 28}
WITH_TOOLS = {**CHATS, tool_chat: 160}


def trains(chat: Chat) -> bool:
    """Whether training may use a chat: neither it nor one of its questions is held out."""
    asked = [message["content"] for message in chat.messages if message["role"] == "user"]
    return not chat.held_out and not any(is_held_out(text) for text in asked)


def a_chat(rng: Random, *, tools: bool = True) -> Chat:
    """A chat to train on, maybe with tools."""
    shares = WITH_TOOLS if tools else CHATS
    while True:
        chat = rng.choices(list(shares), list(shares.values()))[0](rng)
        if trains(chat):
            return chat


def held_out_chats(make: Callable[[Random], Chat], count: int, seed: int = 7) -> list[Chat]:
    """`count` different chats that training never uses."""
    rng = Random(seed)
    unique: dict[str, Chat] = {}
    while len(unique) < count:
        chat = make(rng)
        if chat.held_out:
            unique.setdefault(str(chat.messages), chat)
    return list(unique.values())
