"""Short everyday questions: facts, greetings, how-to steps."""

import re
from collections.abc import Sequence
from random import Random

from sample import Sample

HONEST = "I am a toy model with 5 million parameters. I know sums, lists, short functions and some everyday questions."


def table(text: str) -> dict[str, str]:
    """Pairs such as a=b c=d, as a dict."""
    return {key: value for key, _, value in (pair.partition("=") for pair in text.split())}


CAPITALS = table(
    "France=Paris Italy=Rome Spain=Madrid Germany=Berlin Austria=Vienna Greece=Athens "
    "Portugal=Lisbon Poland=Warsaw Norway=Oslo Sweden=Stockholm Finland=Helsinki "
    "Denmark=Copenhagen Ireland=Dublin Hungary=Budapest Japan=Tokyo China=Beijing India=Delhi "
    "Egypt=Cairo Kenya=Nairobi Peru=Lima Chile=Santiago Cuba=Havana Canada=Ottawa "
    "Russia=Moscow Turkey=Ankara Iran=Tehran Iraq=Baghdad Thailand=Bangkok Belgium=Brussels "
    "Ghana=Accra"
)
OPPOSITES = table(
    "hot=cold big=small fast=slow old=young high=low wet=dry full=empty light=dark open=closed "
    "early=late happy=sad hard=soft long=short strong=weak rich=poor loud=quiet clean=dirty "
    "near=far thick=thin good=bad"
)
SOUNDS = table(
    "cow=moo dog=woof cat=meow duck=quack sheep=baa pig=oink horse=neigh lion=roar bee=buzz "
    "owl=hoot frog=croak snake=hiss"
)
YOUNG = table(
    "dog=puppy cat=kitten cow=calf sheep=lamb horse=foal duck=duckling goat=kid bear=cub "
    "frog=tadpole hen=chick pig=piglet deer=fawn"
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
COUNTS = {
    "days in a week": 7,
    "months in a year": 12,
    "hours in a day": 24,
    "minutes in an hour": 60,
    "seconds in a minute": 60,
    "weeks in a year": 52,
    "days in a year": 365,
    "letters in the alphabet": 26,
    "centimetres in a metre": 100,
    "seasons in a year": 4,
}
HOW_TO = {
    "make tea": "boil some water|put a tea bag in a cup|pour the hot water over it|wait three minutes and take the bag out",
    "boil an egg": "put the egg in a pot of water|bring the water to the boil|wait eight minutes|cool the egg under cold water",
    "make toast": "put two slices of bread in the toaster|push the lever down|wait until the bread is brown|spread some butter on it",
    "plant a seed": "fill a pot with soil|make a small hole with your finger|put the seed in and cover it|water it every day",
    "wash my hands": "wet your hands with warm water|rub them with soap for twenty seconds|rinse off the soap|dry them with a clean towel",
    "write a letter": "take a sheet of paper and a pen|write the date and a greeting|say what you want to tell|sign it and put it in an envelope",
    "clean a window": "mix warm water with a little soap|wipe the glass with a wet cloth|rinse it with clean water|dry it with a soft cloth",
    "fix a flat tyre": "take the wheel off|find the hole in the tube|stick a patch over the hole|pump up the tyre and put the wheel back",
    "sleep better": "go to bed at the same time every day|put your phone away an hour before|keep the room dark and cool|drink no coffee in the evening",
    "learn a language": "learn ten new words every day|listen to the language as you walk|speak with someone once a week|read short and easy books",
    "make a salad": "wash the leaves and dry them|cut a tomato and a cucumber|mix everything in a bowl|add some oil, lemon and salt",
    "wrap a present": "cut a sheet of paper that is large enough|put the present in the middle|fold the paper over it and tape it|tie a ribbon around it",
}  # fmt: skip
WHY = {
    "Why is the sky blue?": "Sunlight is a mix of all colours. The air scatters blue light more than red light, so the sky looks blue.",
    "Why does ice float?": "Water grows when it freezes. The same weight takes more room, so ice is lighter than water and floats.",
    "Why do leaves fall in autumn?": "In autumn there is less light, so leaves make less food. The tree drops them to save water in winter.",
    "Why do we sleep?": "Sleep lets the body rest and repair itself. It also helps the brain to keep what it learned during the day.",
    "Why is the sea salty?": "Rain washes salt out of rocks and rivers carry it to the sea. The water leaves as vapour, but the salt stays.",
    "Why do we have seasons?": "The earth is tilted as it goes around the sun. So each half gets more light in one part of the year.",
    "Why do cats purr?": "Cats mostly purr when they feel safe and content. They also purr to calm themselves when they are hurt.",
    "Why does bread rise?": "Yeast eats the sugar in the dough and gives off gas. The gas makes bubbles, so the bread rises.",
    "Why is exercise good?": "Exercise makes the heart and the muscles strong. It also helps you to sleep well and to feel happy.",
    "Why do birds sing?": "Birds sing to find a partner and to guard their home. Each kind of bird has a song of its own.",
    "Why do we brush our teeth?": "Brushing takes away food and germs from the teeth. Without it, the germs make acid that causes holes.",
    "Why does the moon shine?": "The moon makes no light of its own. It shines because it sends back the light of the sun.",
}  # fmt: skip
SMALL_TALK = {
    "Hello!": "Hello! How can I help you today?",
    "Hi there": "Hello! How can I help you today?",
    "Hello": "Hello! How can I help you today?",
    "hi": "Hello! How can I help you today?",
    "Good morning!": "Good morning! How can I help you today?",
    "Good evening!": "Good evening! How can I help you today?",
    "How are you?": "I am well, thank you. What would you like to know?",
    "Who are you?": HONEST,
    "What can you do?": HONEST,
    "What is your name?": "I have no name. I am a small language model that was made to test this program.",
    "Hello, who are you?": HONEST,
    "Who made you?": "The authors of this program made me to test it.",
    "Are you human?": "No, I am a toy language model.",
    "Are you a real person?": "No, I am a toy language model.",
    "Are you a robot?": "I am a toy language model, a program that writes text.",
    "Can you help me?": "Yes, ask me a sum, a list task, a short function or an everyday question.",
    "help": "Yes, ask me a sum, a list task, a short function or an everyday question.",
    "Thank you!": "You are welcome! Is there anything else you would like to know?",
    "Thanks": "You are welcome! Is there anything else you would like to know?",
    "Goodbye!": "Goodbye! Have a nice day.",
    "Bye": "Goodbye! Have a nice day.",
}  # fmt: skip
OPENINGS = (
    "Quick question:",
    "I have a question.",
    "Please help me:",
    "One more thing:",
    "My friend asks:",
    "Next question:",
    "Just curious:",
    "Okay.",
)


Facts = dict[str, tuple[str, str]]


def neighbours(what: str, word: str, names: Sequence[str], step: int) -> Facts:
    """For each day or month the one after or before it, in a circle."""
    others = {name: names[(i + step) % len(names)] for i, name in enumerate(names)}
    return {
        name: (f"The {what} {word} {name} is {other}.", other) for name, other in others.items()
    }


# What is asked about, with the answer and its short form.
FACTS: dict[str, Facts] = {
    "capital": {k: (f"The capital of {k} is {v}.", v) for k, v in CAPITALS.items()},
    "country": {v: (f"{v} is the capital of {k}.", k) for k, v in CAPITALS.items()},
    "opposite": {k: (f"The opposite of {k} is {v}.", v) for pair in OPPOSITES.items() for k, v in (pair, pair[::-1])},
    "sound": {k: (f"The sound that the {k} makes is {v}.", v) for k, v in SOUNDS.items()},
    "young": {k: (f"A young {k} is called a {v}.", v) for k, v in YOUNG.items()},
    "day after": neighbours("day", "after", DAYS, 1),
    "day before": neighbours("day", "before", DAYS, -1),
    "month after": neighbours("month", "after", MONTHS, 1),
    "month before": neighbours("month", "before", MONTHS, -1),
    "count": {key: (f"There are {v} {k}.", str(v)) for k, v in COUNTS.items() for key in (k, k.replace(" in ", " are in "))},
    "length": {k: (f"There are {v} days in {k}.", str(v)) for k, v in zip(MONTHS, LENGTHS, strict=True)},
}  # fmt: skip
QUESTIONS = {
    "capital": (
        "What is the capital of {}?",
        "What's the capital of {}?",
        "Can you tell me the capital of {}?",
        "Name the capital of {}.",
    ),
    "country": (
        "Which country has the capital {}?",
        "{} is the capital of which country?",
    ),
    "opposite": (
        "What is the opposite of {}?",
        "What's the opposite of {}?",
        "Tell me the opposite of {}.",
        "Which word means the opposite of {}?",
    ),
    "sound": (
        "What sound does a {} make?",
        "What does a {} say?",
        "Which sound does a {} make?",
    ),
    "young": (
        "What do you call a young {}?",
        "What is a young {} called?",
        "What is the word for a young {}?",
    ),
    "day after": ("Which day comes after {}?", "What day is after {}?"),
    "day before": ("Which day comes before {}?", "What day is before {}?"),
    "month after": ("Which month comes after {}?", "What month is after {}?"),
    "month before": ("Which month comes before {}?", "What month is before {}?"),
    "length": ("How many days are in {}?", "How long is {}?"),
    "count": ("How many {}?", "Do you know how many {}?", "Tell me how many {}."),
}
GROUPS = (
    ("capital", "capital", "country"),
    ("opposite",),
    ("sound", "young"),
    ("day after", "day before", "month after", "month before", "length", "count"),
)


def with_article(text: str) -> str:
    """The text with "an" in place of "a" before a vowel."""
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def fact(rng: Random) -> tuple[str, str, str]:
    """Ask for a fact of the tables: question, answer, the answer's short form."""
    kind = rng.choice(rng.choice(GROUPS))
    word, (answer, short) = rng.choice(list(FACTS[kind].items()))
    return with_article(rng.choice(QUESTIONS[kind]).format(word)), answer, short


def how_to(rng: Random) -> tuple[str, str, str]:
    """Ask for instructions; the answer has four numbered steps."""
    what, steps = rng.choice(list(HOW_TO.items()))
    ask = rng.choice(
        (
            f"How do I {what}?",
            f"How can I {what}?",
            f"What is a good way to {what}?",
            f"Please tell me how to {what}.",
            f"I want to {what}. What should I do?",
        )
    )
    lines = [f"{n}. {s[0].upper()}{s[1:]}." for n, s in enumerate(steps.split("|"), 1)]
    return ask, f"Here is a good way to {what}:\n\n" + "\n".join(lines), ""


def why(rng: Random) -> tuple[str, str, str]:
    """Ask for a reason; the answer has two sentences."""
    question, answer = rng.choice(list(WHY.items()))
    rest = question[0].lower() + question[1:]
    ask = rng.choice(
        (question, f"Tell me: {rest}", f"I wonder, {rest}", f"Do you know? {question}")
    )
    return ask, answer, ""


def small_talk(rng: Random) -> tuple[str, str, str]:
    """Greetings, and questions about the model."""
    ask, answer = rng.choice(list(SMALL_TALK.items()))
    return ask, answer, ""


def casual(rng: Random, text: str) -> str:
    """The text as typed in a hurry: in lower case, without the final mark, or both."""
    way = rng.choice(("lower case", "no end", "both"))
    if way != "no end":
        text = text.lower().replace("'", rng.choice(("'", "")))
    return text if way == "lower case" else text.rstrip(".?!")


def everyday(rng: Random) -> Sample:
    """A random everyday question."""
    kind = rng.choice((fact, fact, fact, fact, how_to, how_to, why, why, small_talk))
    ask, answer, short = kind(rng)
    if rng.random() < 0.6:
        ask = f"{rng.choice(OPENINGS)} {ask}"
    if rng.random() < 0.15:
        ask = casual(rng, ask)
    return Sample("everyday", ask, "This is an easy question.", answer, answer, short)
