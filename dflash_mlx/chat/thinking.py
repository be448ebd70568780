"""What an answer says aloud and what it only thinks, told apart while its tokens come.

Two forms are known, by the marks in the vocabulary: thinking between two marks at the beginning,
and an answer of several messages, each with a header that says whom it is for. Does not know models
or stop strings.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

THINKING = re.compile(r"<\|channel\|>analysis|\bto=self\b")
TO_A_TOOL = re.compile(r"\bto=(?!(?:self|user|assistant|commentary|all)\b)")
LONGEST_HEADER = 256  # characters; what goes on longer is text


class Splitter(Protocol):
    """Tells thinking from text; both methods return what became known: (thinking, text)."""

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """Take a token and the text that became readable with it."""
        ...

    def finish(self, text: str) -> tuple[str, str]:
        """Take the rest, at the end of the answer."""
        ...


class Marked:
    """Thinking between a start and an end mark, at the beginning of an answer or never.

    A beginning of a mark is held back until it is known not to be one. `inside`: the prompt has
    opened the thinking. Without a start mark everything is text.
    """

    def __init__(self, start: str | None, end: str | None, *, inside: bool = False):
        self._start, self._end, self._inside = start, end or "", inside
        self._fresh = start is not None and not inside
        self._held = ""

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """Take a token's text."""
        self._held += text
        return self._release(final=False)

    def finish(self, text: str) -> tuple[str, str]:
        """Take the rest."""
        self._held += text
        return self._release(final=True)

    def _release(self, *, final: bool) -> tuple[str, str]:
        thinking = ""
        if self._fresh and self._start:
            opening = self._held.lstrip()
            if not final and (not opening or self._start.startswith(opening)):
                return "", ""
            self._fresh = False
            if opening.startswith(self._start):
                self._inside, self._held = True, opening.removeprefix(self._start)
        if self._inside:
            thinking, found, rest = self._held.partition(self._end)
            if not found:
                keep = 0 if final else held_back(self._held, (self._end,))
                self._held = thinking[len(thinking) - keep :]
                return thinking[: len(thinking) - keep], ""
            self._inside, self._held = False, rest
        text, self._held = self._held, ""
        return thinking, text


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of an answer of several messages, each header<message>body<end>.

    An `end` ends a message and the answer goes on, a `stop` ends both.
    """

    start: str
    message: str
    ends: tuple[str, ...]
    stops: tuple[str, ...]
    needed: tuple[str, ...] = ()  # further marks by which the form is known

    def ids(self, tokenizer: TokenizerWrapper) -> dict[int, str] | None:
        """The marks by token id; None where the vocabulary lacks one that the form is known by."""
        found: dict[int, str] = {}
        for mark in (self.start, self.message, *self.ends, *self.needed, *self.stops):
            number = tokenizer.convert_tokens_to_ids(mark)
            if isinstance(number, int) and tokenizer.convert_ids_to_tokens(number) == mark:
                found[number] = mark
            elif mark not in self.stops:
                return None
        return found


FORMS = (
    Marks("<|start|>", "<|message|>", ("<|eom|>",), ("<|eot|>",)),  # Muse: recipients
    # gpt-oss: channels
    Marks("<|start|>", "<|message|>", ("<|end|>",), ("<|return|>", "<|call|>"), ("<|channel|>",)),
)


class Headed:
    """An answer of several messages: the header's channel or recipient says what a body is.

    Marks are told by their ids, so text that only looks like one stays text. A message to a tool is
    text as it stands, header included. An answer without any mark is text too.
    """

    def __init__(self, marks: Marks, names: dict[int, str]):
        self._marks, self._names = marks, names
        self._header: str | None = ""  # None in a body
        self._given = 0  # how much of the header the prompt has written
        self._thinking = False
        self._plain = True  # no mark so far
        self._said = [False, False]  # text, thinking

    def go_on_from(self, prompt: Sequence[int], tokenizer: TokenizerWrapper) -> None:
        """Begin where a prompt that has a start mark ends."""
        detokenizer = tokenizer.detokenizer
        for token in prompt:
            detokenizer.add_token(token)
            self.feed(token, detokenizer.last_segment)
        detokenizer.finalize()
        self._take(detokenizer.last_segment)
        if self._header is not None:
            self._header += " "  # detokenizers leave an answer's first space out
            self._given = len(self._header)
        self._plain, self._said = True, [False, False]

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """Take a token and its text."""
        mark = self._names.get(token)
        if mark is None:
            return self._take(text)
        self._plain = False
        if mark not in (self._marks.start, self._marks.message, *self._marks.ends):
            return self._take(text)
        thinking, said = self._take(text.removesuffix(mark))
        if mark != self._marks.message:
            self._header, self._given = "", 0
        elif self._header is not None:
            lead = self._open(self._header)
            thinking, said = thinking + lead[0], said + lead[1]
        return thinking, said

    def finish(self, text: str) -> tuple[str, str]:
        """Take the rest; a header that the end has cut is dropped."""
        taken = self._take(text)
        if self._header is None or not self._plain or TO.match(self._header[self._given :]):
            return taken
        header, self._header = self._header[self._given :], None
        return self._body(header)

    def _open(self, header: str) -> tuple[str, str]:
        """Begin a body; what to show before it."""
        self._header, to_a_tool = None, TO_A_TOOL.search(header)
        self._thinking = not to_a_tool and bool(THINKING.search(header))
        lead = "\n\n" if self._said[self._thinking] else ""
        if to_a_tool:
            lead += header[self._given :].removeprefix("assistant").lstrip() + self._marks.message
        return self._body(lead)

    def _take(self, text: str) -> tuple[str, str]:
        if self._header is None:
            return self._body(text)
        self._header += text
        if len(self._header) - self._given <= LONGEST_HEADER:
            return "", ""
        header, self._header, self._thinking = self._header[self._given :], None, False
        return self._body(header)

    def _body(self, text: str) -> tuple[str, str]:
        self._said[self._thinking] |= bool(text)
        return (text, "") if self._thinking else ("", text)


TO = re.compile(r"\s*to=")


def splitter(tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> Splitter:
    """The splitter for an answer that goes on from a prompt, or from its last part."""
    for marks in FORMS:
        names = marks.ids(tokenizer)
        if names is None:
            continue
        start = next(number for number, mark in names.items() if mark == marks.start)
        if start in prompt:
            headed = Headed(marks, names)
            last = len(prompt) - 1 - list(reversed(prompt)).index(start)
            headed.go_on_from(prompt[last:], tokenizer)
            return headed
    if not tokenizer.has_thinking:
        return Marked(None, None)
    inside = tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt)
    return Marked(tokenizer.think_start, tokenizer.think_end, inside=inside)


def turn_ends(tokenizer: TokenizerWrapper) -> frozenset[int]:
    """Tokens that end an answer of several messages, whatever the model's files say."""
    for marks in FORMS:
        if names := marks.ids(tokenizer):
            return frozenset(number for number, mark in names.items() if mark in marks.stops)
    return frozenset()


def held_back(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that could be the start of a marker."""
    longest = max((len(m) for m in markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(m.startswith(text[-size:]) for m in markers):
            return size
    return 0
