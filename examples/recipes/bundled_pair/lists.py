"""Tasks with lists: sort, reverse, count, filter and pick, item by item."""

from collections.abc import Callable
from random import Random

from sample import Sample
from sums import add
from wording import invented_word, loosely

WORDS = (
    "apple pear plum lemon grape melon cherry fig peach mango red blue green pink white black "
    "cat dog cow fox owl bee ant hen pig goat cup hat key pen box bed door lamp book boat tree "
    "rain snow sun moon star wind milk bread salt rice soup cake tea zebra yak horse sheep duck "
    "goose mouse rabbit tiger lion bear wolf frog fish shark whale eagle snake spider camel monkey "
    "donkey otter badger orange banana kiwi nut carrot potato tomato onion bean pea corn cheese "
    "butter egg ham honey jam sugar pepper oil coffee juice water yellow brown grey purple violet "
    "gold silver chair table sofa shelf window wall roof floor house tent bridge road street river "
    "lake sea island hill valley forest field garden flower rose tulip leaf grass stone sand cloud "
    "storm ice fire spoon fork knife plate bowl glass bottle pan pot jar basket bucket bag coat "
    "shirt shoe sock scarf glove belt ring watch clock bell drum piano violin flute guitar pencil "
    "paper ruler brush paint map letter stamp coin card ball doll kite train car bus bike plane "
    "ship "
    "truck wagon wheel rope hammer nail saw axe spade ladder brick hand foot head nose ear eye arm "
    "leg baker farmer doctor king queen uncle aunt sister brother teacher pilot music dance game "
    "story song night day morning summer winter spring autumn month week hour apron anchor button"
).split()
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
Task = tuple[str, str, str, str]  # question, steps, conclusion, the result as a word or number


def phrases(text: str) -> tuple[str, ...]:
    """The phrases between bars or on lines of their own."""
    return tuple(part.strip() for part in text.strip().replace("\n", "|").split("|"))


# {list}: the items. A phrase without it is followed or preceded by them.
RISING = phrases("""Sort these numbers: {list}|Sort {list}|Sort in rising order: {list}|Sort: {list}
    Sort these numbers {way}: {list}|Put these numbers in order, {way}: {list}|Sort {way}: {list}
    Sort the list {list} {way}.|Order these numbers {way}: {list}|Can you sort {list} {way}?
    Sort {list}, smallest first.|Sort the numbers, lowest first: {list}|Put {list} in order.
    Arrange these numbers {way}: {list}|Sort in ascending order: {list}|{list} - sort them please
    Sort {list} in ascending order.|Put these in order: {list}|Order {list}|Please sort {list}.
    Arrange {list} from the smallest to the largest.|My numbers are {list}. Sort them.
    Here are some numbers: {list}. Put them in order, {way}.|{list}: sort these {way}
    Bring {list} into the right order.|Rank these numbers from lowest to highest: {list}
    I have the list {list}. Can you sort it?|Sort the following numbers: {list}""")
RISING_WAYS = phrases("""from small to large|from low to high|from smallest to largest
    smallest first
    from lowest to highest|in ascending order|in rising order|from least to greatest|lowest first
    starting with the smallest""")
FALLING = phrases("""Sort these numbers {way}: {list}|Put these numbers in order, {way}: {list}
    Sort {way}: {list}|Sort the list {list} {way}.|Order these numbers {way}: {list}
    Can you sort {list} {way}?|Sort in descending order: {list}|Sort {list}, largest first.
    Sort {list} {way}|Arrange {list} {way}.|My numbers are {list}. Sort them {way}.
    Please sort {list} {way}.|Sort the following numbers {way}: {list}|{list}: sort these {way}
    Here are some numbers: {list}. Put them in order, {way}.|Put {list} in order, {way}.
    I have the list {list}. Can you sort it {way}?|Rank these numbers {way}: {list}""")
FALLING_WAYS = phrases("""from large to small|from high to low|from largest to smallest
    largest first
    from highest to lowest|in descending order|in falling order|from greatest to least|highest first
    starting with the largest|biggest first""")
ALPHABET = phrases("""Sort these words: {list}|Sort these words alphabetically: {list}
    Sort the words {list}.|Sort {list}
    Put these words in alphabetical order: {list}|Sort {list} alphabetically.
    Alphabetical order: {list}
    Sort the words by the alphabet: {list}|Put {list} in alphabetical order.
    Sort from A to Z: {list}
    Can you sort {list} from A to Z?|Arrange these words alphabetically: {list}
    Order these words from A to Z: {list}|My words are {list}. Sort them alphabetically.
    Please put {list} in alphabetical order.|{list}: sort these words alphabetically
    What is the alphabetical order of {list}?
    I have the words {list}. Put them in alphabetical order.
    Sort the following words in alphabetical order: {list}""")
ALPHABET_BACK = phrases("""Sort from Z to A: {list}|Sort these words from Z to A: {list}
    Sort {list} from Z to A.
    Put {list} in order from Z to A.|Can you sort {list} from Z to A?|{list}: sort these from Z to A
    Sort these words in reverse alphabetical order: {list}|Order these words from Z to A: {list}
    Arrange {list} from Z to A.|My words are {list}. Sort them from Z to A.
    Put these words in reverse alphabetical order: {list}|Please order {list} from Z to A.""")
REVERSE = phrases("""Reverse this list: {list}|Say this list backwards: {list}|Reverse {list}
    Write this list in reverse order: {list}|Can you reverse the list {list}?
    What is {list} backwards?
    Turn this list around: {list}|Reverse the order of {list}.|Write {list} backwards.
    My list is {list}. Reverse it.|Say {list} from the end to the start.|{list} - reverse this
    Give me {list} in reverse order.|Read this list from the last to the first: {list}
    Put {list} in the opposite order.|Flip the list {list}|Here is a list: {list}. Say it backwards.
    I have {list}. What is that in reverse?|List these from last to first: {list}|Reverse: {list}
    What is the reverse of {list}?|Start with the last: {list}|Flip this list: {list}""")
LONG = phrases("""How many items are in this list: {list}|How long is this list: {list}
    Count the items: {list}
    How many things are in the list {list}?|How many items does {list} have?|How many items: {list}
    Count the items in {list}.|What is the length of the list {list}?|How many are these: {list}
    My list is {list}. How many items does it have?|{list} - how many items is that?
    How many entries are in this list: {list}|Here is a list: {list}. How long is it?
    Give me the number of items in {list}.|How many elements does the list {list} have?
    How many things do I list here: {list}|What is the number of items in {list}?
    I have {list}. How many items is that?|Tell me how many items there are: {list}""")
TIMES = phrases("""How many times is {word} in this list: {list}
    Count the word {word} in this list: {list}
    How often is {word} in {list}?|How often does {word} appear here: {list}|Count {word} in {list}
    How many times does {word} come up in the list {list}?|How many {word} are in {list}?
    How many times does {word} appear in {list}?|How often do you see {word} in {list}?
    My list is {list}. How often is {word} in it?|{list} - how many times is {word} there?
    In the list {list}, how many times does {word} occur?|Count how often {word} comes: {list}
    Here is a list: {list}. Count {word}.|How many times do I say {word}: {list}
    Tell me how often {word} appears in {list}.|What is the count of {word} in {list}?
    {list}: how often does it say {word}?|How many times can you find {word} in {list}?""")
KEEP = phrases("""Which of these numbers are {rule}: {list}|Which numbers in {list} are {rule}?
    Which of {list} are {rule}?|What numbers are {rule} in {list}?|Find the numbers {rule}: {list}
    Keep only numbers {rule}: {list}|Show only the numbers {rule}: {list}
    Only numbers {rule}: {list}
    Give me all numbers {rule} from {list}.|Pick the numbers {rule} out of {list}.
    My list is {list}. Which are {rule}?|{list} - which of them are {rule}?
    Keep what is {rule}: {list}
    List the numbers {rule}: {list}|Filter {list}: keep numbers {rule}.|Say which are {rule}: {list}
    Here are some numbers: {list}. Which ones are {rule}?|Select the numbers {rule}: {list}
    Tell me which numbers are {rule}: {list}""")
REMOVE = phrases("""Remove the numbers {rule}: {list}|Remove all numbers {rule} from {list}.
    Delete every number {rule}: {list}|Throw away all numbers {rule}: {list}
    Drop what is {rule}: {list}
    Filter out numbers {rule}: {list}|Take all numbers {rule} out of {list}.
    My list is {list}. Remove everything {rule}.|Leave out the numbers {rule}: {list}
    Filter the numbers {rule} out of {list}.|{list} - remove the numbers {rule}""")
PARITY = phrases("""Which of these numbers are {rule}: {list}|Keep only {rule} numbers: {list}
    Which numbers in {list} are {rule}?|Show only the {rule} numbers: {list}
    Which are {rule}: {list}
    Which of {list} are {rule}?|Find the {rule} numbers in {list}.|Only the {rule} numbers: {list}
    Give me all {rule} numbers from {list}.|Pick the {rule} numbers: {list}
    List the {rule} ones: {list}
    My list is {list}. Which are {rule}?|{list} - which of them are {rule}?
    What is {rule} in {list}?
    Here are some numbers: {list}. Keep the {rule} ones.|Keep the {rule} numbers of {list}.
    Select every {rule} number: {list}|Remove all numbers that are not {rule}: {list}
    Filter out the {other} numbers: {list}|Remove the {other} numbers: {list}
    Delete the {other} ones: {list}
    Take the {other} numbers out of {list}.|Drop every {other} number: {list}
    Filter the {other} numbers out of {list}.|Throw away the {other} numbers: {list}
    Leave out the {other} numbers: {list}|Remove all {other} numbers from {list}.""")
EXTREME = phrases("""Which is the {kind} of these numbers: {list}
    What is the {kind} number in this list: {list}
    Pick the {kind} number: {list}|Find the {kind} number in {list}|What is the {kind} of {list}?
    Which number is the {kind}: {list}|My list is {list}. What is the {kind} number?
    Which is the {kind} in {list}?|Tell me the {kind} number: {list}|{list} - which is the {kind}?
    Give me the {kind} of {list}.|Here are some numbers: {list}. Which is the {kind}?
    What's the {kind} number here: {list}|The {kind} number of {list} please
    Which of {list} is the {kind}?|I have {list}. What is the {kind} one?|Say the {kind} of {list}.
    Select the {kind} number from {list}.|Of {list}, which is the {kind}?|{kind} number: {list}""")
LARGEST = "largest biggest greatest highest largest".split()
SMALLEST = "smallest lowest least smallest".split()
AT_PLACE = phrases("""What is the {name} item of this list: {list}
    Which is the {name} in this list: {list}
    Pick the {name} item: {list}|Give me the {name} of {list}|Say the {name} item of {list}
    What comes {name} in {list}?|My list is {list}. What is the {name} one?
    What is {name} in {list}?
    Which item is {name}: {list}|What is the {name} word or number in {list}?
    {list} - the {name} one?
    Tell me the {name} item in {list}.|Here is a list: {list}. Which one is the {name}?
    Which one is {name} in {list}?|What stands {name} in this list: {list}
    {list}: the {name} item please
    Find the {name} item in {list}.|I have {list}. Which is the {name}?|Name the {name} of {list}.
    Of {list}, which comes {name}?|The {name} item of {list} is what?""")
FINAL = phrases("""What is the final item of {list}?|What is the last one of {list}?
    How does {list} end?
    My list is {list}. What is the final one?|Give me the final item of {list}.
    What comes at the end of {list}?|Which item is at the end: {list}|Name the last of {list}.
    {list} - what is the last one?|What is the final word or number of {list}?""")
INSIDE = phrases("""Is {word} in the list {list}?|Is {word} in this list: {list}
    Is {word} in {list}?
    Does {list} contain {word}?|Does the list {list} include {word}?|Is {word} one of {list}?
    My list is {list}. Is {word} in it?|Can you find {word} in {list}?|Do you see {word} in {list}?
    Is {word} part of the list {list}?|{list} - is {word} there?|Does this list have {word}: {list}
    Here is a list: {list}. Does it contain {word}?|Is there {word} in {list}?
    Look for {word} in {list}. Is it there?|Does {word} appear in {list}?
    I have {list}. Is {word} there?
    Check if {word} is in {list}.|Tell me if {word} is in the list {list}.""")
TOTAL = phrases("""What is the sum of {list}?|Add these numbers: {list}|Add up {list}|Add {list}
    Sum of {list}|What do {list} make together?|What is the total of {list}?|Sum up: {list}
    How much are {list} together?|Add all the numbers: {list}|Calculate the sum of {list}.
    My numbers are {list}. What is their sum?|{list} - what is the sum?|Total of {list}?
    Here are some numbers: {list}. Add them.|Give me the sum of {list}.|Sum the list {list}.
    What do I get if I add {list}?|Find the sum of the list {list}.|Add up the list {list}.""")
TOTAL_OF_TWO = tuple(ask for ask in TOTAL if " list" in ask or "numbers" in ask)
WHERE = phrases("""Where is {word} in {list}?|Where is {word} in this list: {list}
    Find {word} in {list}.
    Which place has {word} in {list}?|What is the position of {word} in {list}?
    Where does {word} come in {list}?
    At which place is {word} in the list {list}?|My list is {list}. Where is {word}?
    Which item is {word} in {list}?|{list} - where is {word}?
    What number is {word} in the list {list}?
    Here is a list: {list}. At which position is {word}?|Tell me where {word} is in {list}.
    In {list}, where is {word}?|Which position does {word} have in {list}?
    Position of {word} in {list}
    What place does {word} have in this list: {list}|I have {list}. Where is {word}?""")
JOIN = phrases("""Join the lists {list} and {second}.|Put {list} and {second} into one list.
    Join these lists: {list} and {second}|Combine {list} and {second} into one list.
    Make one list of {list} and {second}.|Append {second} to {list}.
    Add the items {second} to the list {list}.
    I have {list} and my friend has {second}. Make one list.|Connect the lists {list} and {second}.
    The first list is {list}. The second list is {second}. Join them.|Merge {list} and {second}.
    Put {second} behind {list}.|One list, please: {list} and then {second}
    My lists are {list} and {second}. Put them together.
    Write {list} and then {second} as one list.""")


def joined(items: list[str]) -> str:
    """The items as answers write them."""
    return ", ".join(items)


def as_typed(rng: Random, items: list[str], alone: bool = False) -> str:
    """The items as a user types them; on lines of their own only at the end of a question."""
    style = rng.random()
    if style < 0.6:
        return ", ".join(items)
    if style < 0.7:
        return ",".join(items)
    if style < 0.78:
        return " ".join(items)
    if style < 0.85 and len(items) > 1:
        return f"{', '.join(items[:-1])} and {items[-1]}"
    if style < 0.9:
        return f"[{', '.join(items)}]"
    if style < 0.93:
        return f"({', '.join(items)})"
    if style < 0.96 and alone:
        return "\n" + "\n".join(items)
    if style < 0.98:
        return "; ".join(items)
    return ", ".join(items)


def asked(rng: Random, questions: tuple[str, ...], items: list[str], **fields: str) -> str:
    """One of the questions about the items; {list} may be anywhere in it."""
    question = rng.choice(questions)
    if question.endswith(": {list}") and rng.random() < 0.15:
        question = question.removesuffix(": {list}")
        mark = "?" if question.split()[0] in ASKING else "."
        question = f"{{list}}{rng.choice(SEPARATORS)}{question}{mark}"
    alone = question.endswith(": {list}")
    ask = question.format(list=as_typed(rng, items, alone), **fields).replace(": \n", ":\n")
    return ask[0].upper() + ask[1:] if rng.random() < 0.8 else ask


ASKING = ("Which", "What", "What's", "How", "Is", "Does", "Where", "Can")
SEPARATORS = (". ", ". ", "\n", " - ")


def some_numbers(rng: Random, low: int = 3, high: int = 7) -> list[int]:
    """Different numbers in random order: from 1 to 99, now and then up to 999."""
    top = 1000 if rng.random() < 0.06 else 21 if rng.random() < 0.1 else 100
    return rng.sample(range(1, top), rng.randint(low, high))


def some_words(rng: Random, low: int = 3, high: int = 7) -> list[str]:
    """Different words; now and then some that were never read before."""
    words: list[str] = rng.sample(WORDS, rng.randint(low, high))
    if rng.random() < 0.15:
        words = list(dict.fromkeys(invented_word(rng) for _ in words))
    while len(words) < low:
        words = list(dict.fromkeys([*words, invented_word(rng, 2, 3)]))
    return words


def some_items(rng: Random, low: int = 3, high: int = 7) -> list[str]:
    """Words or numbers."""
    if rng.random() < 0.5:
        return some_words(rng, low, high)
    return [str(value) for value in some_numbers(rng, low, high)]


def quoted(rng: Random, word: str) -> str:
    """A word as users name it: perhaps in quotes."""
    return rng.choice((word, word, word, f'"{word}"', f"'{word}'"))


def numbered(items: list[str]) -> str:
    """The items with their numbers."""
    return joined([f"{number} {item}" for number, item in enumerate(items, 1)])


def sort(rng: Random) -> Task:
    """Sort numbers in rising or falling order."""
    values = some_numbers(rng)
    falling = rng.random() < 0.35
    way = "from large to small" if falling else "from small to large"
    items = [str(value) for value in values]
    ordered = [str(value) for value in sorted(values, reverse=falling)]
    steps = f"The list has {len(items)} numbers: {joined(items)}. In order {way}: "
    said = rng.choice(FALLING_WAYS if falling else RISING_WAYS)
    ask = asked(rng, FALLING if falling else RISING, items, way=said)
    return ask, f"{steps}{joined(ordered)}.", joined(ordered), ""


def sort_words(rng: Random) -> Task:
    """Sort words by the alphabet."""
    words = some_words(rng, 3, 6)
    back = rng.random() < 0.25
    ordered = joined(sorted(words, reverse=back))
    letters = joined([f"{word} {word[0]}" for word in words])
    way = "From Z to A" if back else "In alphabetical order"
    ask = asked(rng, ALPHABET_BACK if back else ALPHABET, words)
    return ask, f"First letters: {letters}. {way}: {ordered}.", ordered, ""


def reverse(rng: Random) -> Task:
    """Say a list backwards."""
    items = some_items(rng)
    back = joined(items[::-1])
    ask = asked(rng, REVERSE, items)
    return ask, f"The list is {joined(items)}. From the last to the first: {back}.", back, ""


def join(rng: Random) -> Task:
    """Make one list of two."""
    first, second = some_items(rng, 2, 4), some_items(rng, 2, 4)
    both = joined(first + second)
    brackets = rng.random() < 0.6
    lists = [f"[{joined(items)}]" if brackets else joined(items) for items in (first, second)]
    ask = rng.choice(JOIN).format(list=lists[0], second=lists[1])
    steps = f"The first list is {joined(first)}. The second is {joined(second)}. Together: {both}."
    return ask, steps, both, ""


def count(rng: Random) -> Task:
    """Count a word in a list, or all its items."""
    if rng.random() < 0.3:
        items = some_items(rng, 2, 8)
        ask = asked(rng, LONG, items)
        conclusion = f"There are {len(items)} items."
        return ask, f"We go through the list: {numbered(items)}.", conclusion, str(len(items))
    kinds = some_items(rng, 3, 3) if rng.random() < 0.2 else some_words(rng, 3, 3)
    items = [rng.choice(kinds) for _ in range(rng.randint(4, 8))]
    word = rng.choice(items)
    if rng.random() < 0.08:
        word = rng.choice([other for other in WORDS if other not in items])
    seen, steps = 0, []
    for item in items:
        seen += item == word
        steps.append(f"{item} {seen}")
    total = "once" if seen == 1 else f"{seen} times"
    ask = asked(rng, TIMES, items, word=quoted(rng, word))
    name = "number" if word.isdigit() else "word"
    conclusion = f"The {name} {word} is there {total}."
    return ask, f"We look for {word}: {joined(steps)}.", conclusion, str(seen)


# How a limit may be called, and how the answer calls it.
LIMITS: dict[str, tuple[tuple[str, ...], Callable[[int, int], bool]]] = {
    "greater than": (phrases("greater than|over|above|more than|larger than"), lambda v, n: v > n),
    "less than": (phrases("less than|under|below|smaller than|lower than"), lambda v, n: v < n),
    "at least": (phrases("at least|not less than"), lambda v, n: v >= n),
    "at most": (phrases("at most|not more than"), lambda v, n: v <= n),
}
OPPOSITE = {
    "greater than": "at most",
    "less than": "at least",
    "at least": "less than",
    "at most": "greater than",
}


def keep(rng: Random) -> Task:
    """Filter numbers by size or by parity."""
    values = some_numbers(rng, 4, 7)
    items = [str(value) for value in values]
    if rng.random() < 0.5:
        remove = rng.random() < 0.2
        name = rng.choices(list(LIMITS), (1, 1, 4, 4) if remove else (4, 4, 1, 1))[0]
        words, holds = LIMITS[name]
        limit = rng.choice(range(10, 91, 10)) if rng.random() < 0.7 else rng.randint(5, 95)
        if rng.random() < 0.1:
            limit = rng.choice(values)
        kept = [v for v in values if holds(v, limit)]
        rule = f"{name} {limit}"
        asks = KEEP
        if remove:
            asks, words = REMOVE, LIMITS[OPPOSITE[name]][0]
        ask = asked(rng, asks, items, rule=f"{rng.choice(words)} {limit}")
    else:
        rule, other = rng.choice((("even", "odd"), ("odd", "even")))
        kept = [v for v in values if v % 2 == (rule == "odd")]
        ask = asked(rng, PARITY, items, rule=rule, other=other)
    checks = joined([f"{v} {'yes' if v in kept else 'no'}" for v in values])
    result = joined([str(v) for v in kept]) if kept else "none"
    short = result if len(kept) == 1 else ""
    steps = f"We look for numbers that are {rule}: {checks}."
    return ask, steps, f"The result is: {result}", short


def extreme(rng: Random) -> Task:
    """Pick the largest or the smallest number."""
    values = some_numbers(rng)
    kind, best = rng.choice((("largest", max), ("smallest", min)))
    steps, leader = [], values[0]
    for value in values:
        leader = best(leader, value)
        steps.append(f"{value} {leader}")
    said = rng.choice(LARGEST if kind == "largest" else SMALLEST)
    ask = asked(rng, EXTREME, [str(value) for value in values], kind=said)
    conclusion = f"The {kind} number is {leader}."
    return ask, f"We keep the {kind} so far: {joined(steps)}.", conclusion, str(leader)


def pick(rng: Random) -> Task:
    """Pick an item by its place, or the largest or smallest number."""
    if rng.random() < 0.5:
        return extreme(rng)
    items = some_items(rng, 3, 8)
    place = rng.randrange(len(items))
    last = place == len(items) - 1 or rng.random() < 0.15
    name, item = ("last", items[-1]) if last else (PLACES[place], items[place])
    if last and rng.random() < 0.12:
        ask = asked(rng, FINAL, items)
    else:
        ask = asked(rng, AT_PLACE, items, name=name)
    return ask, f"We number the list: {numbered(items)}.", f"The {name} item is {item}.", item


def inside(rng: Random) -> Task:
    """Whether an item is in the list."""
    items = some_items(rng, 3, 6)
    word = rng.choice(items)
    if rng.random() < 0.5:
        others = some_words(rng, 7, 7) if items[0].isalpha() else map(str, some_numbers(rng, 7, 7))
        word = next(other for other in others if other not in items)
    found = word in items
    checks = joined([f"{item} {'yes' if item == word else 'no'}" for item in items])
    ask = asked(rng, INSIDE, items, word=quoted(rng, word))
    conclusion = f"Yes, {word} is in the list." if found else f"No, {word} is not in the list."
    return ask, f"We look for {word}: {checks}.", conclusion, "yes" if found else "no"


def total(rng: Random) -> Task:
    """Add two to four numbers, one after the other."""
    values = [rng.randint(1, rng.choice((9, 20, 99))) for _ in range(rng.randint(3, 4))]
    asks = TOTAL
    if rng.random() < 0.2:  # other sums of two numbers are in sums.py
        values, asks = values[:2], TOTAL_OF_TWO
    result, steps = values[0], []
    for value in values[1:]:
        steps.append(add(result, value))
        result += value
    ask = asked(rng, asks, [str(value) for value in values])
    return (
        ask,
        f"We add one after the other. {' '.join(steps)}",
        f"The sum is {result}.",
        str(result),
    )


def where(rng: Random) -> Task:
    """The place of an item."""
    items = some_items(rng, 3, 7)
    place = rng.randrange(len(items))
    ask = asked(rng, WHERE, items, word=quoted(rng, items[place]))
    conclusion = f"{items[place]} is item {place + 1}."
    places = joined([f"{item} {number}" for number, item in enumerate(items[: place + 1], 1)])
    return ask, f"We look for {items[place]}: {places}.", conclusion, str(place + 1)


SHORT_STEPS = (sort, sort_words, reverse, join)  # their steps end with the result
KINDS: tuple[Callable[[Random], Task], ...] = (
    sort,
    sort_words,
    reverse,
    join,
    count,
    keep,
    pick,
    inside,
    total,
    where,
)
SHARES = (3, 3, 3, 1, 4, 4, 4, 2, 2, 2)


def list_task(rng: Random, kind: Callable[[Random], Task]) -> Sample:
    """A task of one kind."""
    ask, steps, conclusion, short = kind(rng)
    answer = steps if kind in SHORT_STEPS else f"{steps}\n\n{conclusion}"
    ask = loosely(rng, ask)
    if rng.random() < 0.06:
        ask = ask.lower()
    return Sample("lists", ask, steps, answer, conclusion, short)


def lists(rng: Random) -> Sample:
    """A random task with a list."""
    return list_task(rng, rng.choices(KINDS, SHARES)[0])
