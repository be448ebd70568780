"""Short Python functions with a docstring and one example."""

from random import Random

from sample import Sample

PREFIXES = "my new quick simple plain tiny nice easy main good".split()

# description, name, arguments, docstring, body lines, example call, its value
Task = tuple[str, str, str, str, tuple[str, ...], str, str]


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
    n, word, values = 4, "level", [4, 9, 2]
    tasks: tuple[Task, ...] = (
        ("returns the largest number of a list", "largest", "values",
         "Return the largest value.",
         ("best = values[0]", "for v in values:", "    if v > best:", "        best = v",
          "return best"), f"({values})", f"{max(values)}"),
        ("returns the smallest number of a list", "smallest", "values",
         "Return the smallest value.",
         ("best = values[0]", "for v in values:", "    if v < best:", "        best = v",
          "return best"), f"({values})", f"{min(values)}"),
        ("sums a list of numbers", "total", "values", "Return the sum of the values.",
         ("result = 0", "for v in values:", "    result += v", "return result"),
         f"({values})", f"{sum(values)}"),
        ("returns the square of a number", "square", "n", "Return n times n.",
         ("return n * n",), f"({n})", f"{n * n}"),
        ("computes the factorial of a number", "factorial", "n", "Return the factorial of n.",
         ("result = 1", "for i in range(2, n + 1):", "    result *= i", "return result"),
         f"({n})", "24"),
        ("checks if a number is even", "is_even", "n", "Return True if n is even.",
         ("return n % 2 == 0",), f"({n})", f"{n % 2 == 0}"),
        ("checks if a number is odd", "is_odd", "n", "Return True if n is odd.",
         ("return n % 2 == 1",), f"({n})", f"{n % 2 == 1}"),
        ("reverses a text", "reverse_text", "text", "Return the text backwards.",
         ("return text[::-1]",), f'("{word}")', f'"{word[::-1]}"'),
        ("checks if a word reads the same backwards", "is_palindrome", "word",
         "Return True if the word reads the same backwards.",
         ("return word == word[::-1]",), f'("{word}")', f"{word == word[::-1]}"),
        ("counts the vowels of a text", "count_vowels", "text",
         "Return the number of vowels in the text.",
         ("count = 0", "for letter in text:", '    if letter in "aeiou":', "        count += 1",
          "return count"), f'("{word}")', "2"),
        ("returns the length of a text", "text_length", "text",
         "Return the number of letters in the text.",
         ("return len(text)",), f'("{word}")', f"{len(word)}"),
        ("sorts a list of numbers", "sort_values", "values", "Return the values in order.",
         ("return sorted(values)",), f"({values})", f"{sorted(values)}"),
        ("reverses a list", "reverse_list", "items", "Return the items backwards.",
         ("return items[::-1]",), f"({values})", f"{values[::-1]}"),
        ("squares every number of a list", "square_all", "values",
         "Return the square of each value.",
         ("return [v * v for v in values]",), f"({values})", f"{[v * v for v in values]}"),
        ("turns a text into capital letters", "capitals", "text",
         "Return the text in capital letters.",
         ("return text.upper()",), f'("{word}")', f'"{word.upper()}"'),
    )  # fmt: skip
    return rng.choice(tasks)


def question(rng: Random) -> tuple[str, Task]:
    """A question for a random function, with its own name or one from the user."""
    task = with_number(rng) if rng.random() < 0.6 else without_number(rng)
    what, name = task[:2]
    if rng.random() < 0.5:
        name = f"{rng.choice(PREFIXES)}_{name}"
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
