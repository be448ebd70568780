"""What may stand before the text that a grammar rules: thinking, and a line break after it.

A lead is a state, and gives the state after each token; None is the end of it, where the grammar
begins. Knows tokens and markers, not what the grammar is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.thinking import MESSAGE_FORMATS, THINKING_HEADER, TOOL_HEADER

BREAKS = ("\n", "\n\n")  # what models write between thinking and answer


class Lead(Protocol):
    """A state before the text."""

    @property
    def takes(self) -> frozenset[int] | None:
        """The tokens that go on with it; None for all but those that end an answer."""
        ...

    @property
    def begins(self) -> bool:
        """Whether the text may begin here as well; a token of both belongs to the text."""
        ...

    def after(self, token: int) -> "Lead | None":
        """The state after a token that it takes."""
        ...


@dataclass(frozen=True, slots=True)
class Tags:
    """Thinking between two markers, and the line breaks that may follow it."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    breaks: frozenset[int]


@dataclass(frozen=True, slots=True)
class Opening:
    """The answer's begin: the first `done` tokens of the start marker are there."""

    tags: Tags
    done: int = 0

    @property
    def takes(self) -> frozenset[int]:
        """The marker's next token."""
        return frozenset(self.tags.start[self.done : self.done + 1])

    @property
    def begins(self) -> bool:
        """Nobody has to think; but a marker is written to its end."""
        return not self.done

    def after(self, token: int) -> Lead:
        """More of the marker, or thinking."""
        done = self.done + 1
        return Thinking(self.tags) if done == len(self.tags.start) else replace(self, done=done)


@dataclass(frozen=True, slots=True)
class Thinking:
    """Inside of the markers; `tail` are its last tokens."""

    tags: Tags
    tail: tuple[int, ...] = ()
    takes: None = None
    begins: bool = False

    def after(self, token: int) -> Lead:
        """Still thinking, unless this was the end marker's last token."""
        tail = (*self.tail, token)[-len(self.tags.end) :]
        return Gap(self.tags.breaks) if tail == self.tags.end else replace(self, tail=tail)


@dataclass(frozen=True, slots=True)
class Gap:
    """After the end marker: one token of line breaks may come first."""

    takes: frozenset[int]
    begins: bool = True

    def after(self, token: int) -> None:
        """The text."""


@dataclass(frozen=True, slots=True)
class Headers:
    """An answer of several messages: the text is the first one that is no thinking and no call.

    `header` has the tokens since the start of a message; None in its body.
    """

    start: int
    message: int
    decode: Callable[[Sequence[int]], str]
    header: tuple[int, ...] | None = ()
    takes: None = None
    begins: bool = False

    def after(self, token: int) -> "Headers | None":
        """The text begins behind the header of its message."""
        if token == self.start:
            return replace(self, header=())
        if self.header is None:
            return self
        if token != self.message:
            return replace(self, header=(*self.header, token))
        header = self.decode(self.header)
        other = THINKING_HEADER.search(header) or TOOL_HEADER.search(header)
        return replace(self, header=None) if other else None


def lead_after(tokenizer: TokenizerWrapper, opening: Sequence[int]) -> Lead | None:
    """What may come first in an answer that goes on from an opening, as chat.thinking reads it."""
    for form in MESSAGE_FORMATS:
        ids = {mark: number for number, mark in (form.ids(tokenizer) or {}).items()}
        if ids.get(form.start) in opening:
            state: Lead | None = Headers(ids[form.start], ids[form.message], tokenizer.decode)
            for token in opening[last_index(opening, ids[form.start]) :]:
                state = None if state is None else state.after(token)
            return state
    start, end = tokenizer.think_start_tokens, tokenizer.think_end_tokens
    if not start or not end:
        return None
    began, ended = tokenizer.rfind_think_start(opening), tokenizer.rfind_think_end(opening)
    encoded = (tokenizer.encode(text, add_special_tokens=False) for text in BREAKS)
    breaks = frozenset(ids[0] for ids in encoded if len(ids) == 1)
    tags = Tags(tuple(start), tuple(end), breaks)
    if began > ended:
        return Thinking(tags)
    return Opening(tags) if ended < 0 else None


def last_index(tokens: Sequence[int], token: int) -> int:
    """Where a token stands for the last time."""
    return len(tokens) - 1 - list(reversed(tokens)).index(token)
