"""Streaming split of an answer into thinking and text.

Two formats are supported, and recognised by special tokens of the vocabulary: thinking between two
tags at the start of the answer (<think>), and an answer of several messages, each with a header of
its channel or recipient (gpt-oss harmony, Muse).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

THINKING_HEADER = re.compile(r"<\|channel\|>analysis|\bto=self\b")
TOOL_HEADER = re.compile(r"\bto=(?!(?:self|user|assistant|commentary|all)\b)")
LONGEST_HEADER = 256  # characters; a longer header is text


class Splitter(Protocol):
    """Splits thinking from text; both methods return new (thinking, text)."""

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """Add a token and its detokenized text."""
        ...

    def finish(self, text: str) -> tuple[str, str]:
        """Add the last text, at the end of the answer."""
        ...


class TagSplitter:
    """Thinking between a start and an end tag, at the start of an answer only.

    Text that may be the start of a tag is held back. `inside`: the prompt ends inside of thinking.
    Without a start tag everything is text.
    """

    def __init__(self, start: str | None, end: str | None, *, inside: bool = False):
        self._start = start
        self._end = end or ""
        self._inside = inside
        self._fresh = start is not None and not inside
        self._held = ""

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """Add a token's text."""
        self._held += text
        return self._release(final=False)

    def finish(self, text: str) -> tuple[str, str]:
        """Add the last text."""
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
                self._inside = True
                self._held = opening.removeprefix(self._start)
        if self._inside:
            thinking, found, rest = self._held.partition(self._end)
            if not found:
                keep = 0 if final else partial_match(self._held, (self._end,))
                self._held = thinking[len(thinking) - keep :]
                return thinking[: len(thinking) - keep], ""
            self._inside = False
            self._held = rest
        text = self._held
        self._held = ""
        return thinking, text


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """Special tokens of an answer of several messages, each header<message>body<end>.

    One of `ends` ends a message, one of `stops` the message and the answer.
    """

    start: str
    message: str
    ends: tuple[str, ...]
    stops: tuple[str, ...]
    needed: tuple[str, ...] = ()  # more tokens that the vocabulary must have

    def ids(self, tokenizer: TokenizerWrapper) -> dict[int, str] | None:
        """The special tokens by id; None if the vocabulary lacks one (`stops` are optional)."""
        found: dict[int, str] = {}
        for mark in (self.start, self.message, *self.ends, *self.needed, *self.stops):
            number = tokenizer.convert_tokens_to_ids(mark)
            if isinstance(number, int) and tokenizer.convert_ids_to_tokens(number) == mark:
                found[number] = mark
            elif mark not in self.stops:
                return None
        return found


MUSE = MessageFormat("<|start|>", "<|message|>", ("<|eom|>",), ("<|eot|>",))  # recipients
HARMONY = MessageFormat(  # gpt-oss: channels
    "<|start|>", "<|message|>", ("<|end|>",), ("<|return|>", "<|call|>"), ("<|channel|>",)
)
MESSAGE_FORMATS = (MUSE, HARMONY)


class MessageSplitter:
    """An answer of several messages, split by the channel or recipient in their headers.

    Special tokens are recognised by id, so that text that looks like one stays text. A message to a
    tool is text, with its header. An answer without special tokens is text, too.
    """

    def __init__(self, form: MessageFormat, names: dict[int, str]):
        self._format = form
        self._names = names
        self._header: str | None = ""  # None in a body
        self._given = 0  # length of the header's part in the prompt
        self._thinking = False
        self._plain = True  # no special token so far
        self._has_output = [False, False]  # text, thinking

    def start_after(self, prompt: Sequence[int], tokenizer: TokenizerWrapper) -> None:
        """Read the end of a prompt, from its last start token on."""
        detokenizer = tokenizer.detokenizer
        for token in prompt:
            detokenizer.add_token(token)
            self.feed(token, detokenizer.last_segment)
        detokenizer.finalize()
        self._take(detokenizer.last_segment)
        if self._header is not None:
            self._header += " "  # a detokenizer drops the first space of an answer
            self._given = len(self._header)
        self._plain = True
        self._has_output = [False, False]

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """Add a token and its text."""
        mark = self._names.get(token)
        if mark is None:
            return self._take(text)
        self._plain = False
        if mark not in (self._format.start, self._format.message, *self._format.ends):
            return self._take(text)
        thinking, text = self._take(text.removesuffix(mark))
        if mark != self._format.message:
            self._header = ""
            self._given = 0
        elif self._header is not None:
            lead = self._open(self._header)
            thinking += lead[0]
            text += lead[1]
        return thinking, text

    def finish(self, text: str) -> tuple[str, str]:
        """Add the last text; an incomplete header is dropped."""
        taken = self._take(text)
        if self._header is None or not self._plain or RECIPIENT.match(self._header[self._given :]):
            return taken
        header = self._header[self._given :]
        self._header = None
        return self._body(header)

    def _open(self, header: str) -> tuple[str, str]:
        """Start a body; returns the text before it."""
        self._header = None
        to_a_tool = TOOL_HEADER.search(header)
        self._thinking = not to_a_tool and bool(THINKING_HEADER.search(header))
        lead = "\n\n" if self._has_output[self._thinking] else ""
        if to_a_tool:
            lead += header[self._given :].removeprefix("assistant").lstrip() + self._format.message
        return self._body(lead)

    def _take(self, text: str) -> tuple[str, str]:
        if self._header is None:
            return self._body(text)
        self._header += text
        if len(self._header) - self._given <= LONGEST_HEADER:
            return "", ""
        header = self._header[self._given :]
        self._header = None
        self._thinking = False
        return self._body(header)

    def _body(self, text: str) -> tuple[str, str]:
        self._has_output[self._thinking] |= bool(text)
        return (text, "") if self._thinking else ("", text)


RECIPIENT = re.compile(r"\s*to=")


def splitter(tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> Splitter:
    """The splitter for an answer after these tokens of the prompt, or the last of them."""
    for form in MESSAGE_FORMATS:
        names = form.ids(tokenizer)
        if names is None:
            continue
        start = next(number for number, mark in names.items() if mark == form.start)
        if start in prompt:
            message_splitter = MessageSplitter(form, names)
            last = len(prompt) - 1 - list(reversed(prompt)).index(start)
            message_splitter.start_after(prompt[last:], tokenizer)
            return message_splitter
    if not tokenizer.has_thinking:
        return TagSplitter(None, None)
    inside = tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt)
    return TagSplitter(tokenizer.think_start, tokenizer.think_end, inside=inside)


def eos_ids_of(tokenizer: TokenizerWrapper) -> frozenset[int]:
    """The tokens that end an answer."""
    return frozenset(tokenizer.eos_token_ids) | end_of_turn_ids(tokenizer)


def end_of_turn_ids(tokenizer: TokenizerWrapper) -> frozenset[int]:
    """The ids of the tokens that end an answer of several messages; empty for other formats."""
    for form in MESSAGE_FORMATS:
        if names := form.ids(tokenizer):
            return frozenset(number for number, mark in names.items() if mark in form.stops)
    return frozenset()


def partial_match(text: str, markers: Sequence[str]) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of a marker."""
    longest = max((len(m) for m in markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(m.startswith(text[-size:]) for m in markers):
            return size
    return 0


# Streaming detokenization of an answer


@dataclass(frozen=True, slots=True)
class Piece:
    """New text: `text` of the answer, `thinking` before it; `stop`: the stop string found."""

    text: str = ""
    thinking: str = ""
    stop: str = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string ends the answer."""
        return bool(self.stop)


class Reader:
    """Detokenizes one answer incrementally.

    `prompt` is the tokens before the answer, or the last of them. Without `split` thinking is text
    with its tags, as in what is no chat. Tool calls are not parsed: they are text.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        prompt: Sequence[int],
        stop_strings: Sequence[str] = (),
        *,
        split: bool = True,
    ):
        self._detokenizer = tokenizer.detokenizer
        self._splitter = splitter(tokenizer, prompt) if split else TagSplitter(None, None)
        stops = (stop_strings,) if isinstance(stop_strings, str) else stop_strings
        self._stops = tuple(s for s in stops if s)
        self._held = ""

    def read(self, tokens: Sequence[int]) -> Piece:
        """Add tokens, without stop tokens; returns the new text."""
        thinking = ""
        for token in tokens:
            self._detokenizer.add_token(token)
            new_thinking, text = self._splitter.feed(token, self._detokenizer.last_segment)
            thinking += new_thinking
            self._held += text
        return self._release(thinking, final=False)

    def finish(self) -> Piece:
        """The remaining text at the end of the answer."""
        self._detokenizer.finalize()
        thinking, text = self._splitter.finish(self._detokenizer.last_segment)
        self._held += text
        return self._release(thinking, final=True)

    def _release(self, thinking: str, *, final: bool) -> Piece:
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            text = self._held[:at]
            self._held = ""
            return Piece(text, thinking, stop)
        cut = len(self._held) - (0 if final else partial_match(self._held, self._stops))
        text = self._held[:cut]
        self._held = self._held[cut:]
        return Piece(text, thinking)
