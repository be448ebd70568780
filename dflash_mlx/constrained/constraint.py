"""What a grammar allows in one answer: masks of rows, and drafts that are worth a row.

The matcher stands after the tokens that are committed. Drafts are tried and taken back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.reasoning_parser import MESSAGE_FORMATS, THINKING_HEADER, TOOL_HEADER
from dflash_mlx.errors import DFlashError
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.tree import Ranked

if TYPE_CHECKING:
    from llguidance import LLMatcher


# What may stand before the text that a grammar rules

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
    start = tokenizer.think_start_tokens
    end = tokenizer.think_end_tokens
    if not start or not end:
        return None
    began = tokenizer.rfind_think_start(opening)
    ended = tokenizer.rfind_think_end(opening)
    encoded = (tokenizer.encode(text, add_special_tokens=False) for text in BREAKS)
    breaks = frozenset(ids[0] for ids in encoded if len(ids) == 1)
    tags = Tags(tuple(start), tuple(end), breaks)
    if began > ended:
        return Thinking(tags)
    return Opening(tags) if ended < 0 else None


def last_index(tokens: Sequence[int], token: int) -> int:
    """Where a token stands for the last time."""
    return len(tokens) - 1 - list(reversed(tokens)).index(token)


FULL = -1  # a word of 32 tokens that are all allowed


@dataclass(frozen=True, slots=True)
class Masks:
    """What all masks of a target have: their words of 32 tokens, and who computes them.

    `fill` has llguidance's masks before and after drafts, into rows int32 [1 + drafts, words].
    """

    words: int
    fill: "Callable[[LLMatcher, list[int], np.ndarray], None]"


class Constraint:
    """The state of one answer: a lead, where thinking may come first, then the matcher.

    compiled: the matcher at its beginning, of which copies are used. ends: tokens that end an
    answer; they are allowed where the grammar accepts, never in a lead.
    """

    def __init__(
        self, compiled: "LLMatcher", lead: Lead | None, masks: Masks, ends: frozenset[int]
    ):
        self._compiled = compiled
        self._lead = lead
        self._masks = masks
        self._ends = frozenset(token for token in ends if token < 32 * masks.words)
        self._matcher = compiled.deep_copy()
        self._read: list[int] = []  # by the matcher
        self._fault = ""  # why the grammar cannot go on
        self._known: dict[tuple[int, ...], np.ndarray] = {}  # masks after paths of this round

    def fork(self) -> "Constraint":
        """A copy that goes on by itself."""
        twin = copy(self)
        twin._matcher = self._matcher.deep_copy()
        twin._read = [*self._read]
        twin._known = {}
        return twin

    @property
    def ended(self) -> bool:
        """Whether the text is whole and nothing can follow it."""
        return self._lead is None and self._matcher.is_stopped()

    def take(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Commit tokens, up to the one that ends the text: those that are committed.

        DFlashError where the grammar cannot go on with one of them.
        """
        self._known.clear()
        for count, token in enumerate(tokens, 1):
            if self._fault or not self._step(token):
                why = self._fault or self._matcher.get_error() or "no token of the target fits it"
                raise DFlashError(
                    f"the grammar cannot go on here ({why.strip().splitlines()[0]}).",
                    hint="make the schema or the grammar simpler",
                )
            if self.ended:
                return tokens[:count]
        return tokens

    def steer(self, chain: Draft, count: int, most: int) -> Draft:
        """The first `count` drafts of a chain that the grammar allows, with what it forces.

        A token is forced where it is the only one allowed: it needs no drafter and takes the place
        of another draft, and what was meant to follow that one is dropped. At most `most` drafts.
        A chain that was drawn at random keeps the first draft that is not allowed: whether a place
        is resampled after a draft, or drawn anew without one, must not depend on that draft.
        """
        tokens: list[int] = np.array(chain.tokens).tolist()
        said = tokens[:count]
        drawn = chain.probabilities is not None
        found: list[int] = []
        sure: list[bool] = []
        legal = True
        with self._trial():
            while legal and len(found) < most and not self.ended:
                place = len(found)
                forced = [] if self._lead else self._matcher.compute_ff_tokens()[:1]
                if forced and said[place : place + 1] != forced:
                    said = said[:place]
                if not (token := forced or said[place : place + 1]):
                    break
                legal = self._step(token[0])
                if legal or drawn:
                    found += token
                    sure.append(bool(forced))
        judged = sum(takewhile(bool, map(eq, found, said))) - (drawn and not legal)
        if drawn:
            return chain.with_forced(found, sure, judged)
        return Draft(mx.array(found, dtype=mx.int32), judged=judged)

    def narrow(self, path: tuple[int, ...], ranked: Ranked) -> Ranked:
        """Candidates after a path of drafts without those that are not allowed there.

        Their probabilities are those among the tokens that may still be: also unknown ones. Where
        one token is forced it is the only candidate, whatever the drafter says.
        """
        mask = self._mask_after(path)
        if mask is None:
            return [], [], []
        logs, ids, cases = ranked
        words = mask.view(np.uint32)
        if int(np.bitwise_count(words).sum()) == 1:
            place = int(np.flatnonzero(words)[0])
            token = 32 * place + int(words[place]).bit_length() - 1
            return [0.0], [token], [cases[ids.index(token)] if token in ids else 0]
        names = np.array(ids, dtype=np.int64)
        chances = np.exp(np.array(logs))
        kept = np.flatnonzero(words[names // 32] >> (names % 32).astype(np.uint32) & 1)
        share = chances[kept].sum() + max(0.0, 1.0 - chances.sum())
        less = float(np.log(share)) if share > 0 else 0.0
        return (
            [min(0.0, logs[n] - less) for n in kept],
            [ids[n] for n in kept],
            [cases[n] for n in kept],
        )

    def mask(self, logits: mx.array, draft: Draft) -> mx.array:
        """Logits [R, V] of an anchor and its drafts; what is not allowed becomes -inf.

        Row j stands after the first j drafts, of a tree after the path to its node. Rows behind the
        text's end, and behind a draft that is not allowed, are left as they are.
        """
        words = self._rows(draft)
        words[~words.any(axis=1)] = FULL  # no token fits: the one that is chosen is refused
        bits = mx.array(words).view(mx.uint32)[..., None] >> mx.arange(32, dtype=mx.uint32)
        allowed = (bits & 1).astype(mx.bool_).reshape(len(words), -1)[:, : logits.shape[-1]]
        return mx.where(allowed, logits, mx.array(-mx.inf, dtype=logits.dtype))

    def _rows(self, draft: Draft) -> np.ndarray:
        """The masks of a verify's rows, int32 [R, words]."""
        if draft.tree is not None:
            full = np.full(self._masks.words, FULL, dtype=np.int32)
            found = [self._mask_after(path) for path in draft.tree.paths()]
            return np.stack([full if mask is None else mask for mask in found])
        tokens: list[int] = np.array(draft.tokens).tolist()
        rows = np.full((len(tokens) + 1, self._masks.words), FULL, dtype=np.int32)
        with self._trial():
            for place in range(len(rows)):
                if self._lead is None:
                    self._fill(rows[place:], tokens[place:])
                    break
                rows[place] = self._row()
                if place < len(tokens) and not self._step(tokens[place]):
                    break
        return rows

    def _mask_after(self, path: tuple[int, ...]) -> np.ndarray | None:
        """The mask [words] after a path of drafts; None behind the end, or where it cannot be."""
        if path not in self._known:
            with self._trial():
                if not all(not self.ended and self._step(token) for token in path) or self.ended:
                    return None
                self._known[path] = self._row()
        return self._known[path]

    def _step(self, token: int) -> bool:
        """Go on by a token; False, and nothing happens, where it is not allowed."""
        lead = self._lead
        if lead is None or lead.begins:
            if self._matcher.try_consume_tokens([token]) == 1:
                self._read.append(token)
                self._lead = None
                return True
            if lead is None:
                return False
        takes = lead.takes
        if token in self._ends if takes is None else token not in takes:
            return False
        self._lead = lead.after(token)
        return True

    @contextmanager
    def _trial(self) -> Iterator[None]:
        """Steps in it are taken back."""
        lead = self._lead
        read = len(self._read)
        try:
            yield
        finally:
            if self._matcher.is_error():  # which is for ever, also where only a draft led to it
                self._matcher = self._compiled.deep_copy()
                self._matcher.consume_tokens(self._read[:read])
            elif len(self._read) > read:
                self._matcher.rollback(len(self._read) - read)
            del self._read[read:]
            self._lead = lead

    def _row(self) -> np.ndarray:
        """The mask [words] where the answer stands now."""
        lead = self._lead
        rows = np.zeros((1, self._masks.words), dtype=np.int32)
        if lead is None or lead.begins:
            self._fill(rows, [])
        if lead is None:
            return rows[0]
        bits = rows[0].view(np.uint32)
        if lead.takes is None:
            bits[:] = 0xFFFFFFFF
            for token in self._ends:
                bits[token // 32] &= ~np.uint32(1 << token % 32)
        for token in lead.takes or ():
            bits[token // 32] |= np.uint32(1 << token % 32)
        return rows[0]

    def _fill(self, rows: np.ndarray, drafts: list[int]) -> None:
        """The matcher's masks before and after drafts, into the first rows [1 + drafts, words]."""
        self._masks.fill(self._matcher, drafts, rows)
        self._fault = self._fault or self._matcher.get_error()
