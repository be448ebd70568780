"""Short Python functions with a docstring and one example."""

from collections.abc import Sequence
from random import Random

from read_words import read_words
from sample import Sample

PHRASES = read_words("functions")
# what it does, name, arguments, docstring, body lines, example call, its value
Task = tuple[str, str, str, str, Sequence[str], str, str]


def with_number(rng: Random) -> Task:
    """Functions with a random number in them."""
    k, n, word, values = rng.randint(2, 12), 5, "ok", [3, 8, 12, 5]
    r = min(k, 4)
    tasks: tuple[Task, ...] = (
        (f"adds {k} to a number", f"add_{k}", "n", f"Return n plus {k}.",
         (f"return n + {k}",), f"({n})", f"{n + k}"),
        (f"subtracts {k} from a number", f"subtract_{k}", "n", f"Return n minus {k}.",
         (f"return n - {k}",), f"({n + k})", f"{n}"),
        (f"multiplies a number by {k}", f"times_{k}", "n", f"Return n times {k}.",
         (f"return n * {k}",), f"({n})", f"{n * k}"),
        (f"checks if a number can be divided by {k}", f"divisible_by_{k}", "n",
         f"Return True if n can be divided by {k}.",
         (f"return n % {k} == 0",), f"({n * k})", "True"),
        (f"checks if a number is greater than {k}", f"greater_than_{k}", "n",
         f"Return True if n is greater than {k}.",
         (f"return n > {k}",), f"({n})", f"{n > k}"),
        (f"keeps the numbers of a list that are greater than {k}", f"keep_above_{k}", "values",
         f"Return the values greater than {k}.",
         (f"return [v for v in values if v > {k}]",), f"({values})",
         f"{[v for v in values if v > k]}"),
        (f"adds {k} to every number of a list", f"add_{k}_to_all", "values",
         f"Return the values, each plus {k}.",
         (f"return [v + {k} for v in values]",), f"({values})", f"{[v + k for v in values]}"),
        (f"repeats a text {r} times", f"repeat_{r}", "text", f"Return the text {r} times.",
         (f"return text * {r}",), f'("{word}")', f'"{word * r}"'),
        (f"returns the first {r} items of a list", f"first_{r}", "items",
         f"Return the first {r} items.",
         (f"return items[:{r}]",), f"({values})", f"{values[:r]}"),
        (f"returns the last {r} items of a list", f"last_{r}", "items",
         f"Return the last {r} items.",
         (f"return items[-{r}:]",), f"({values})", f"{values[-r:]}"),
        (f"sums the numbers from 1 to {k}", f"sum_to_{k}", "", f"Return the sum from 1 to {k}.",
         ("total = 0", f"for n in range(1, {k} + 1):", "    total += n", "return total"),
         "()", f"{k * (k + 1) // 2}"),
    )  # fmt: skip
    return rng.choice(tasks)


def without_number(rng: Random) -> Task:
    """Common functions without a number."""
    found = rng.choice(PHRASES["functions"])
    return (
        found["what"],
        found["name"],
        found["arguments"],
        found["docstring"],
        found["body"],
        found["call"],
        found["value"],
    )


def question(rng: Random) -> tuple[str, Task]:
    """A question for a random function, with its own name or one from the user."""
    task = with_number(rng) if rng.random() < 0.6 else without_number(rng)
    what, name = task[:2]
    if rng.random() < 0.5:
        prefix = rng.choice(PHRASES["prefixes"])
        name = f"{prefix}_{name}"
        ask = rng.choice(
            (
                f"Write a Python function called {name} that {what}.",
                f"Please write a function {name} in Python that {what}.",
            )
        )
    else:
        ask = rng.choice(
            (
                f"Write a Python function that {what}.",
                f"I need a Python function that {what}.",
                f"How do I write a function in Python that {what}?",
            )
        )
    return ask, renamed(task, name)


def renamed(task: Task, name: str) -> Task:
    """The same function under another name."""
    return (task[0], name, *task[2:])


def answered(ask: str, task: Task) -> Sample:
    """The question with the function's code and example as the answer."""
    what, name, arguments, docstring, body, call, value = task
    code = "\n".join(
        [f"def {name}({arguments}):", f'    """{docstring}"""', *(f"    {line}" for line in body)]
    )
    answer = (
        f"Here is a Python function that {what}:\n\n```python\n{code}\n```\n\n"
        f"For example, `{name}{call}` returns `{value}`."
    )
    return Sample(
        "functions", ask, f"The user wants a Python function that {what}.", answer, answer
    )


def functions(rng: Random) -> Sample:
    """A random function."""
    return answered(*question(rng))
