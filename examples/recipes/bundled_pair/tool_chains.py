"""Tasks for tools whose calls need each other's results."""

from collections.abc import Callable
from random import Random

from tool_schemas import Action, Lookup, Tool
from tool_tasks import (
    Step,
    Task,
    a_file,
    a_folder,
    a_number,
    a_person,
    a_text,
    a_value,
    a_word,
    action_result,
    list_step,
    looked_up,
    lookup_step,
    some_files,
    sum_step,
)

Chain = Callable[[Random], Task]


def read_step(read: Tool, path: str, text: str) -> Step:
    """The call that reads a file."""
    return Step(read, {read.arguments[0]: path}, text)


def holding(rng: Random, number: int) -> str:
    """The content of a file in which there is one number."""
    texts = ("{}", "{}", "{a} = {}", "The number is {}.", "{name} has {} {a}s.", "{a}: {}")
    return rng.choice(texts).format(number, a=a_word(rng), name=a_person(rng))


def holding_two(rng: Random, a: int, b: int) -> str:
    """The content of a file in which there are two numbers."""
    texts = ("{} {}", "{}\n{}", "{}, {}", "{} and {}", "a = {}\nb = {}", "first {}, second {}")
    return rng.choice(texts).format(a, b)


def path_in(folder: str, name: str) -> str:
    """The path of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def two_files(rng: Random, read: Tool, add: Tool) -> Task:
    """Add the numbers of two files."""
    x, y = a_file(rng), a_file(rng)
    a, b = a_number(rng), a_number(rng)
    orders = (
        f"read {x} and {y} and add their numbers",
        f"add the number in {x} to the number in {y}",
        f"read the files {x} and {y} and add the numbers in them",
        f"read {x}, read {y}, then add the numbers",
        f"read {x}, then {y}, and tell me the sum of the numbers",
        f"open {x} and {y} and sum the numbers in them",
        f"first read {x}, then read {y}, then add the two numbers",
        f"take the number from {x} and the number from {y} and add them",
    )
    questions = (
        f"What is the sum of the numbers in {x} and {y}?",
        f"How much are the numbers in {x} and {y} together?",
        f"What do the numbers in {x} and {y} add up to?",
    )
    steps = (
        read_step(read, x, holding(rng, a)),
        read_step(read, y, holding(rng, b)),
        sum_step(rng, add, a, b),
    )
    return Task(rng.choice(orders), questions, steps, f"The sum is {a + b}.")


def number_in_file(rng: Random, read: Tool, add: Tool) -> Task:
    """Add a number to the one in a file."""
    path, a, b = a_file(rng), a_number(rng), a_number(rng)
    orders = (
        f"read {path} and add {b} to the number in it",
        f"add {b} to the number in {path}",
        f"read the number in {path} and add {b}",
        f"read {path}, then add {b} to its number",
        f"take the number from {path} and add {b} to it",
    )
    questions = (
        f"How much is the number in {path} plus {b}?",
        f"What is {b} more than the number in {path}?",
    )
    steps = (read_step(read, path, holding(rng, a)), sum_step(rng, add, a, b))
    return Task(rng.choice(orders), questions, steps, f"The sum is {a + b}.")


def numbers_in_file(rng: Random, read: Tool, add: Tool) -> Task:
    """Add the two numbers in a file, and maybe a third that the user gives."""
    path, a, b, c = a_file(rng), a_number(rng), a_number(rng), a_number(rng)
    steps = (read_step(read, path, holding_two(rng, a, b)), sum_step(rng, add, a, b))
    if rng.random() < 0.5:
        orders = (
            f"read {path} and add the two numbers in it",
            f"add the numbers in {path}",
            f"read the file {path} and add its numbers",
            f"read {path}, then add the numbers you find",
            f"open {path} and tell me the sum of its numbers",
        )
        questions = (
            f"What is the sum of the numbers in {path}?",
            f"What do the numbers in {path} add up to?",
        )
        return Task(rng.choice(orders), questions, steps, f"The sum is {a + b}.")
    orders = (
        f"read {path}, add the two numbers in it, then add {c}",
        f"add the numbers in {path} and then add {c}",
        f"read {path} and add its numbers and {c}",
        f"first read {path}, then add its two numbers, then add {c} to the sum",
    )
    questions = (f"How much are the numbers in {path} plus {c}?",)
    steps = (*steps, sum_step(rng, add, a + b, c))
    return Task(rng.choice(orders), questions, steps, f"The sum is {a + b + c}.")


def file_in_folder(rng: Random, listing: Tool, read: Tool) -> Task:
    """List a folder and read the only file in it, or a file that the user names."""
    folder, text = a_folder(rng), a_text(rng)
    names = some_files(rng, rng.choice((1, 1, 3)))
    name = rng.choice(names)
    path = path_in(folder, name)
    if len(names) == 1:
        orders = (
            f"list {folder} and read the file in it",
            f"read the file in the folder {folder}",
            f"find the file in {folder} and read it",
            f"list {folder}, then read what is in it",
        )
        questions = (f"What does the file in {folder} say?",)
    else:
        orders = (
            f"list {folder} and read {name}",
            f"list the folder {folder}, then read {name} in it",
            f"look into {folder} and read the file {name}",
        )
        questions = (f"Is {name} in {folder}, and what does it say?",)
    steps = (list_step(rng, listing, folder, names), read_step(read, path, text))
    return Task(rng.choice(orders), questions, steps, f"The file {path} says: {text}")


def numbers_in_folder(rng: Random, listing: Tool, read: Tool, add: Tool) -> Task:
    """List a folder, read a file in it, and add its numbers, or a number to its number."""
    folder, a, b = a_folder(rng), a_number(rng), a_number(rng)
    names = some_files(rng, rng.choice((1, 1, 3)))
    name = rng.choice(names)
    it = "the file in it" if len(names) == 1 else name
    path = path_in(folder, name)
    if rng.random() < 0.5:
        text = holding_two(rng, a, b)
        orders = (
            f"list {folder}, read {it} and add the two numbers in it",
            f"list the folder {folder}, then read {it}, then add its numbers",
            f"look into {folder}, read {it} and tell me the sum of its numbers",
            f"list {folder}, read {it} and add its numbers",
        )
    else:
        text = holding(rng, a)
        orders = (
            f"list {folder}, read {it} and add {b} to its number",
            f"list the folder {folder}, read {it}, then add {b} to the number",
            f"look into {folder}, read {it} and add {b} to the number in it",
        )
    steps = (
        list_step(rng, listing, folder, names),
        read_step(read, path, text),
        sum_step(rng, add, a, b),
    )
    return Task(rng.choice(orders), (), steps, f"The sum is {a + b}.")


def file_of_file(rng: Random, read: Tool) -> Task:
    """Read a file that names another file, and read that."""
    first, second, text = a_file(rng), a_file(rng), a_text(rng)
    orders = (
        f"read {first} and then the file that it names",
        f"read the file that {first} names",
        f"{first} names another file: read that one",
        f"open {first}, then open the file named in it",
    )
    questions = (f"What does the file say that {first} names?",)
    named = rng.choice(("{}", "See {}", "{}", "The file is {}")).format(second)
    steps = (read_step(read, first, named), read_step(read, second, text))
    return Task(rng.choice(orders), questions, steps, f"The file {second} says: {text}")


def add_chain(rng: Random, add: Tool) -> Task:
    """Add three or four numbers, one after the other."""
    numbers = [a_number(rng) for _ in range(rng.choice((3, 4, 4)))]
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(sum_step(rng, add, total, number))
        total += number
    listed = ", ".join(str(number) for number in numbers)
    later = ", then ".join(f"add {number}" for number in numbers[2:])
    spoken = f"{', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"
    orders = (
        f"add {numbers[0]} and {numbers[1]}, then {later}",
        f"add these numbers: {listed}",
        f"add up {listed}",
        f"add {spoken}",
        f"start with {numbers[0]}, add {numbers[1]}, then {later}",
        f"sum {spoken}",
    )
    questions = (f"What is the sum of {listed}?", f"How much are {spoken} together?")
    return Task(rng.choice(orders), questions, tuple(steps), f"The sum is {total}.")


def lookup_sum(rng: Random, lookup: Lookup, add: Tool) -> Task:
    """Look up two numbers and add them, or one and add a number."""
    x, y, a, b = a_value(rng), a_value(rng), a_number(rng), a_number(rng)
    attribute = lookup.attribute
    first = lookup_step(rng, lookup, x, a)
    total = sum_step(rng, add, a, b)
    if rng.random() < 0.3:
        orders = (
            f"get the {attribute} of {x} and add {b} to it",
            f"look up the {attribute} of {x}, then add {b}",
            f"add {b} to the {attribute} of {x}",
        )
        questions = (f"What is the {attribute} of {x} plus {b}?",)
        return Task(rng.choice(orders), questions, (first, total), f"The sum is {a + b}.")
    orders = (
        f"get the {attribute} of {x} and the {attribute} of {y} and add them",
        f"add the {attribute} of {x} and the {attribute} of {y}",
        f"look up the {attribute} of {x}, then of {y}, and add the two",
        f"find the {attribute} of {x} and of {y} and tell me the sum",
        f"first get the {attribute} of {x}, then the {attribute} of {y}, then add them",
    )
    questions = (
        f"What is the {attribute} of {x} plus the {attribute} of {y}?",
        f"How much is the {attribute} of {x} and {y} together?",
    )
    steps = (first, lookup_step(rng, lookup, y, b), total)
    return Task(rng.choice(orders), questions, steps, f"The sum is {a + b}.")


def read_lookup(rng: Random, read: Tool, lookup: Lookup, add: Tool | None) -> Task:
    """Look up something for what a file names; with `add`, add a number to it."""
    path, value, b = a_file(rng), a_value(rng), a_number(rng)
    attribute = lookup.attribute
    found = looked_up(rng) if add is None else a_number(rng)
    steps = (read_step(read, path, value), lookup_step(rng, lookup, value, found))
    if add is not None and isinstance(found, int):
        orders = (
            f"read {path}, get the {attribute} of what it names and add {b}",
            f"read {path}, look up the {attribute} of the thing in it, then add {b} to it",
        )
        steps = (*steps, sum_step(rng, add, found, b))
        return Task(rng.choice(orders), (), steps, f"The sum is {found + b}.")
    orders = (
        f"read {path} and get the {attribute} of what it names",
        f"read {path} and look up the {attribute} of the thing in it",
        f"read {path}, then find the {attribute} of what it says",
    )
    questions = (f"What is the {attribute} of the thing in {path}?",)
    return Task(rng.choice(orders), questions, steps, f"The {attribute} of {value} is {found}.")


def read_action(rng: Random, read: Tool, action: Action) -> Task:
    """Do something with the text of a file. The action takes a single text."""
    path, value, result = a_file(rng), a_value(rng), action_result(rng, action)
    key = action.tool.arguments[0]
    words = f"{action.verb} the {action.noun}"
    orders = (
        f"read {path} and {words} with {key} set to what it says",
        f"read {path}, then {words} with the text as {key}",
        f"{words} with what {path} says as {key}",
    )
    steps = (read_step(read, path, value), Step(action.tool, {key: value}, result))
    return Task(rng.choice(orders), (), steps, f"Done. The tool says: {result}")


def lookup_action(rng: Random, lookup: Lookup, action: Action) -> Task:
    """Do something with what was looked up. The action takes a single text."""
    value, found, result = a_value(rng), a_word(rng), action_result(rng, action)
    key = action.tool.arguments[0]
    words = f"{action.verb} the {action.noun}"
    orders = (
        f"get the {lookup.attribute} of {value} and {words} with it as {key}",
        f"look up the {lookup.attribute} of {value}, then {words} with {key} set to it",
    )
    steps = (lookup_step(rng, lookup, value, found), Step(action.tool, {key: found}, result))
    return Task(rng.choice(orders), (), steps, f"Done. The tool says: {result}")
