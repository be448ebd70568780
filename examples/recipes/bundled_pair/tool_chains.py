"""Tasks for tools whose calls need each other's results."""

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
    worded,
)


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
    steps = (
        read_step(read, x, holding(rng, a)),
        read_step(read, y, holding(rng, b)),
        sum_step(rng, add, a, b),
    )
    return worded(rng, "two_files", steps, f"The sum is {a + b}.", x=x, y=y)


def number_in_file(rng: Random, read: Tool, add: Tool) -> Task:
    """Add a number to the one in a file."""
    path, a, b = a_file(rng), a_number(rng), a_number(rng)
    steps = (read_step(read, path, holding(rng, a)), sum_step(rng, add, a, b))
    return worded(rng, "number_in_file", steps, f"The sum is {a + b}.", path=path, b=b)


def numbers_in_file(rng: Random, read: Tool, add: Tool) -> Task:
    """Add the two numbers in a file, and maybe a third that the user gives."""
    path, a, b, c = a_file(rng), a_number(rng), a_number(rng), a_number(rng)
    steps = (read_step(read, path, holding_two(rng, a, b)), sum_step(rng, add, a, b))
    if rng.random() < 0.5:
        return worded(rng, "numbers_in_file", steps, f"The sum is {a + b}.", path=path)
    steps = (*steps, sum_step(rng, add, a + b, c))
    report = f"The sum is {a + b + c}."
    return worded(rng, "numbers_in_file_and_one", steps, report, path=path, c=c)


def file_in_folder(rng: Random, listing: Tool, read: Tool) -> Task:
    """List a folder and read the only file in it, or a file that the user names."""
    folder, text = a_folder(rng), a_text(rng)
    names = some_files(rng, rng.choice((1, 1, 3)))
    name = rng.choice(names)
    path = path_in(folder, name)
    kind = "only_file_in_folder" if len(names) == 1 else "file_in_folder"
    steps = (list_step(rng, listing, folder, names), read_step(read, path, text))
    report = f"The file {path} says: {text}"
    return worded(rng, kind, steps, report, folder=folder, name=name)


def numbers_in_folder(rng: Random, listing: Tool, read: Tool, add: Tool) -> Task:
    """List a folder, read a file in it, and add its numbers, or a number to its number."""
    folder, a, b = a_folder(rng), a_number(rng), a_number(rng)
    names = some_files(rng, rng.choice((1, 1, 3)))
    name = rng.choice(names)
    it = "the file in it" if len(names) == 1 else name
    path = path_in(folder, name)
    if rng.random() < 0.5:
        kind, text = "numbers_in_folder", holding_two(rng, a, b)
    else:
        kind, text = "number_in_folder", holding(rng, a)
    steps = (
        list_step(rng, listing, folder, names),
        read_step(read, path, text),
        sum_step(rng, add, a, b),
    )
    return worded(rng, kind, steps, f"The sum is {a + b}.", folder=folder, it=it, b=b)


def file_of_file(rng: Random, read: Tool) -> Task:
    """Read a file that names another file, and read that."""
    first, second, text = a_file(rng), a_file(rng), a_text(rng)
    named = rng.choice(("{}", "See {}", "{}", "The file is {}")).format(second)
    steps = (read_step(read, first, named), read_step(read, second, text))
    return worded(rng, "file_of_file", steps, f"The file {second} says: {text}", first=first)


def add_chain(rng: Random, add: Tool) -> Task:
    """Add three or four numbers, one after the other."""
    numbers = [a_number(rng) for _ in range(rng.choice((3, 4, 4)))]
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(sum_step(rng, add, total, number))
        total += number
    words = {
        "a": numbers[0],
        "b": numbers[1],
        "listed": ", ".join(str(number) for number in numbers),
        "later": ", then ".join(f"add {number}" for number in numbers[2:]),
        "spoken": f"{', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}",
    }
    return worded(rng, "add_chain", tuple(steps), f"The sum is {total}.", **words)


def lookup_sum(rng: Random, lookup: Lookup, add: Tool) -> Task:
    """Look up two numbers and add them, or one and add a number."""
    x, y, a, b = a_value(rng), a_value(rng), a_number(rng), a_number(rng)
    words = {"attribute": lookup.attribute, "x": x, "y": y, "b": b}
    report = f"The sum is {a + b}."
    first = lookup_step(rng, lookup, x, a)
    total = sum_step(rng, add, a, b)
    if rng.random() < 0.3:
        return worded(rng, "lookup_and_add_one", (first, total), report, **words)
    steps = (first, lookup_step(rng, lookup, y, b), total)
    return worded(rng, "lookup_two_and_add", steps, report, **words)


def read_lookup(rng: Random, read: Tool, lookup: Lookup, add: Tool | None) -> Task:
    """Look up something for what a file names; with `add`, add a number to it."""
    path, value, b = a_file(rng), a_value(rng), a_number(rng)
    words = {"path": path, "attribute": lookup.attribute, "b": b}
    found = looked_up(rng) if add is None else a_number(rng)
    steps = (read_step(read, path, value), lookup_step(rng, lookup, value, found))
    if add is not None and isinstance(found, int):
        steps = (*steps, sum_step(rng, add, found, b))
        return worded(rng, "read_lookup_add", steps, f"The sum is {found + b}.", **words)
    report = f"The {lookup.attribute} of {value} is {found}."
    return worded(rng, "read_lookup", steps, report, **words)


def read_action(rng: Random, read: Tool, action: Action) -> Task:
    """Do something with the text of a file. The action takes a single text."""
    path, value, result = a_file(rng), a_value(rng), action_result(rng, action)
    key = action.tool.arguments[0]
    words = {"path": path, "words": f"{action.verb} the {action.noun}", "key": key}
    steps = (read_step(read, path, value), Step(action.tool, {key: value}, result))
    return worded(rng, "read_action", steps, f"Done. The tool says: {result}", **words)


def lookup_action(rng: Random, lookup: Lookup, action: Action) -> Task:
    """Do something with what was looked up. The action takes a single text."""
    value, found, result = a_value(rng), a_word(rng), action_result(rng, action)
    key = action.tool.arguments[0]
    words = {"attribute": lookup.attribute, "value": value, "key": key}
    words["words"] = f"{action.verb} the {action.noun}"
    steps = (lookup_step(rng, lookup, value, found), Step(action.tool, {key: found}, result))
    return worded(rng, "lookup_action", steps, f"Done. The tool says: {result}", **words)
