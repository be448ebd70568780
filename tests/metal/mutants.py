"""Faults by rule in a kernel's text: each loop, sum and comparison, slightly wrong."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .source import tokens

# A loop's parts: how it starts, up to where it runs and how it goes on.
LOOP = re.compile(r"\bfor \((?P<start>[^;]*); (?P<more>[^;]*); (?P<step>[^;{]*)\) \{")
STRIDE = re.compile(r"(?P<name>\w+) \+= (?P<by>.+)")
SUM = re.compile(r" (?P<sign>\||\+|\*)= ")
COMPARISON = re.compile(r" (?P<sign><=|>=|<|>) ")
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


@dataclass(frozen=True)
class Mutant:
    """A text with one fault: its line, from 1, what is wrong there, and the whole text."""

    line: int
    fault: str
    text: str


def mutants(text: str) -> Iterator[Mutant]:
    """All faults of a text by the rules.

    once: a loop ends after its first round. late: it begins with its second. early: it ends before
    its last. only: a sum keeps nothing but its newest part. edge: a comparison takes equality for
    the opposite.
    """
    plain = _without_comments(text)
    loops = list(LOOP.finditer(plain))
    for loop in loops:
        for fault, start, end, new in _of_loop(loop):
            yield _mutant(text, fault, start, end, new)
    headers = [range(loop.start(), loop.end()) for loop in loops]
    for found in SUM.finditer(plain):
        if not any(found.start() in header for header in headers):
            yield _mutant(text, "only", *found.span(), " = ")
    for found in COMPARISON.finditer(plain):
        yield _mutant(text, "edge", *found.span("sign"), OTHER[found["sign"]])


def _of_loop(loop: re.Match[str]) -> Iterator[tuple[str, int, int, str]]:
    """Fault, place and replacement, for a loop that counts up or down by one or by strides."""
    name = loop["start"].split("=")[0].split()[-1]
    stride = STRIDE.match(loop["step"])
    by = stride["by"] if stride else "1"
    down = "--" in loop["step"]
    sign, back = ("-", "+") if down else ("+", "-")
    far = 14 if "ushort" in loop["start"] else 20
    yield "once", *loop.span("step"), f"{name} {sign}= 1 << {far}"
    if " *= " in loop["step"]:
        return
    yield "late", *loop.span("start"), f"{loop['start']} {sign} ({by})"
    if down:
        more = loop["more"].replace(name, f"{name} {back} (-{by})", 1)
    else:
        more = loop["more"].replace(name, f"{name} + ({by})", 1)
    yield "early", *loop.span("more"), more


def _mutant(text: str, fault: str, start: int, end: int, new: str) -> Mutant:
    return Mutant(text.count("\n", 0, start) + 1, fault, text[:start] + new + text[end:])


def _without_comments(text: str) -> str:
    """The text with spaces in place of comments, so that places stay the same."""
    return "".join(
        re.sub(r"\S", " ", token.text) if token.text.startswith(("//", "/*")) else token.text
        for token in tokens(text)
    )
