"""What a grammar allows in one answer: token bitmasks, and the drafts that it allows.

The matcher has consumed the committed tokens. Drafts are tried, and rolled back afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Literal

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.reasoning_parser import (
    MESSAGE_FORMATS,
    THINKING_HEADER,
    TOOL_HEADER,
    from_last,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.tree import Ranked

if TYPE_CHECKING:
    from llguidance import LLMatcher


# The part of an answer before the text that the grammar constrains

LINE_BREAKS = ("\n", "\n\n")  # models write one of them between thinking and text


@dataclass(frozen=True, slots=True)
class Tags:
    """An answer with thinking between two tags: before it, inside of it, or after it.

    start, end: the tokens of the tags. line_breaks: one of these tokens may come after thinking.
    tail: the last tokens, which may be the beginning of the next tag.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    line_breaks: frozenset[int]
    place: Literal["before", "inside", "after"]
    tail: tuple[int, ...] = ()

    @property
    def allowed(self) -> frozenset[int] | None:
        """The tokens allowed here; None for all but those that end an answer."""
        if self.place == "before":
            return frozenset(self.start[len(self.tail) : len(self.tail) + 1])
        return self.line_breaks if self.place == "after" else None

    @property
    def may_end(self) -> bool:
        """Whether the text may start here. A token allowed in both belongs to the text.

        A model need not think, but a started tag is completed.
        """
        return self.place == "after" or (self.place == "before" and not self.tail)

    def advance(self, token: int) -> "Tags | None":
        """The state after an allowed token; None when the text starts."""
        if self.place == "after":
            return None
        tag, following = (self.start, "inside") if self.place == "before" else (self.end, "after")
        tail = (*self.tail, token)[-len(tag) :]
        if tail == tag:
            return replace(self, place=following, tail=())
        return replace(self, tail=tail)


@dataclass(frozen=True, slots=True)
class MessageHeaders:
    """An answer of several messages; the text is the first that is neither thinking nor a call.

    header: the tokens since the start of a message; None in its body.
    """

    start: int
    message: int
    decode: Callable[[Sequence[int]], str]
    header: tuple[int, ...] | None = ()
    allowed: None = None
    may_end: bool = False

    def advance(self, token: int) -> "MessageHeaders | None":
        if token == self.start:
            return replace(self, header=())
        if self.header is None:
            return self
        if token != self.message:
            return replace(self, header=(*self.header, token))
        header = self.decode(self.header)
        if THINKING_HEADER.search(header) or TOOL_HEADER.search(header):
            return replace(self, header=None)
        return None


ReasoningState = Tags | MessageHeaders  # of an answer before its constrained text


def reasoning_state(
    tokenizer: TokenizerWrapper, generation_prompt: Sequence[int]
) -> ReasoningState | None:
    """The state at the start of an answer after these tokens; None if the text starts at once."""
    for message_format in MESSAGE_FORMATS:
        names = message_format.ids(tokenizer) or {}
        ids = {name: token for token, name in names.items()}
        if ids.get(message_format.start) in generation_prompt:
            state: ReasoningState | None = MessageHeaders(
                ids[message_format.start], ids[message_format.message], tokenizer.decode
            )
            for token in from_last(generation_prompt, ids[message_format.start]):
                state = None if state is None else state.advance(token)
            return state
    start = tokenizer.think_start_tokens
    end = tokenizer.think_end_tokens
    if not start or not end:
        return None
    started = tokenizer.rfind_think_start(generation_prompt)
    ended = tokenizer.rfind_think_end(generation_prompt)
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in LINE_BREAKS]
    line_breaks = frozenset(ids[0] for ids in encoded if len(ids) == 1)
    if started > ended:
        return Tags(tuple(start), tuple(end), line_breaks, "inside")
    return Tags(tuple(start), tuple(end), line_breaks, "before") if ended < 0 else None


# Token bitmasks, in words of 32 tokens

ALL_ALLOWED = -1  # a word


@dataclass(frozen=True, slots=True)
class Bitmask:
    """The bitmasks of one target. words: 32 tokens each.

    fill: writes the matcher's bitmasks before and after each of its drafts into int32
    [1 + drafts, words].
    """

    words: int
    fill: "Callable[[LLMatcher, list[int], np.ndarray], None]"

    def error_at_start(self, compiled: "LLMatcher") -> str:
        """Why a grammar allows no first token, such as a schema that only refers to itself."""
        matcher = compiled.deep_copy()
        rows = np.zeros((1, self.words), dtype=np.int32)
        self.fill(matcher, [], rows)
        error = matcher.get_error()
        if not error and rows.any():
            return ""
        return "no text fits it" if not error or error.startswith("NoExtensionBias") else error


class Constraint:
    """The state of one answer: its reasoning state, then the grammar's matcher.

    compiled: the matcher at the start of the grammar, which is copied. ends: the tokens that end
    an answer; they are allowed where the grammar is complete, never before the text.
    """

    def __init__(
        self,
        compiled: "LLMatcher",
        reasoning: ReasoningState | None,
        bitmask: Bitmask,
        ends: frozenset[int],
    ):
        self._compiled = compiled
        self._reasoning = reasoning
        self._bitmask = bitmask
        self._ends = frozenset(token for token in ends if token < 32 * bitmask.words)
        self._matcher = compiled.deep_copy()
        self._consumed: list[int] = []  # by the matcher
        self._masks_after: dict[tuple[int, ...], np.ndarray] = {}  # by drafts of this round
        self._errors_after: dict[tuple[int, ...], str] = {}  # of the matcher, likewise

    def fork(self) -> "Constraint":
        twin = copy(self)
        twin._matcher = self._matcher.deep_copy()
        twin._consumed = [*self._consumed]
        twin._masks_after = {}
        twin._errors_after = {}
        return twin

    @property
    def ended(self) -> bool:
        return self._reasoning is None and self._matcher.is_stopped()

    def accept_tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Commit tokens, and return those up to the end of the text.

        Raises DFlashError if the grammar cannot continue with one of them.
        """
        errors = self._errors_after
        self._masks_after = {}
        self._errors_after = {}
        for count, token in enumerate(tokens, 1):
            error = errors.get(tokens[: count - 1])
            if error or not self._consume(token):
                why = error or self._matcher.get_error() or "no token of the target fits it"
                raise DFlashError(
                    f"the grammar allows no next token here ({why.strip().splitlines()[0]}).",
                    hint="make the schema or the grammar simpler",
                )
            if self.ended:
                return tokens[:count]
        return tokens

    def filter_draft(self, chain: Draft, count: int, limit: int) -> Draft:
        """The first `count` drafts of a chain as far as they are allowed, with forced tokens.

        A token that is the only one allowed is forced: it takes the place of the drafter's token,
        and the drafter's later tokens are dropped. At most `limit` drafts. A chain that was
        sampled keeps its first draft that is not allowed: whether that place is resampled after a
        rejected draft or sampled without a draft must not depend on the draft.
        """
        tokens: list[int] = np.array(chain.tokens).tolist()
        proposed = tokens[:count]
        sampled = chain.probabilities is not None
        drafts: list[int] = []
        is_forced: list[bool] = []
        legal = True
        with self._rollback():
            while legal and len(drafts) < limit and not self.ended:
                place = len(drafts)
                forced = [] if self._reasoning else self._matcher.compute_ff_tokens()[:1]
                if forced and proposed[place : place + 1] != forced:
                    proposed = proposed[:place]
                token = forced or proposed[place : place + 1]
                if not token:
                    break
                legal = self._consume(token[0])
                if legal or sampled:
                    drafts += token
                    is_forced.append(bool(forced))
        judged = sum(takewhile(bool, map(eq, drafts, proposed))) - (sampled and not legal)
        if sampled:
            return chain.with_forced(drafts, is_forced, judged)
        return Draft(mx.array(drafts, dtype=mx.int32), judged=judged)

    def filter_candidates(self, path: tuple[int, ...], ranked: Ranked) -> Ranked:
        """The candidates after a path of drafts that are allowed there.

        Their probabilities are renormalised over all allowed tokens, also those that are not among
        the candidates. A forced token is the only candidate, whatever the drafter proposes.
        """
        mask = self._mask_after(path)
        if mask is None:
            return [], [], []
        log_probs, ids, cases = ranked
        words = mask.view(np.uint32)
        if int(np.bitwise_count(words).sum()) == 1:
            word = int(np.flatnonzero(words)[0])
            token = 32 * word + int(words[word]).bit_length() - 1
            return [0.0], [token], [cases[ids.index(token)] if token in ids else 0]
        tokens = np.array(ids, dtype=np.int64)
        probs = np.exp(np.array(log_probs))
        kept = np.flatnonzero(words[tokens // 32] >> (tokens % 32).astype(np.uint32) & 1)
        allowed_mass = probs[kept].sum() + max(0.0, 1.0 - probs.sum())
        log_mass = float(np.log(allowed_mass)) if allowed_mass > 0 else 0.0
        return (
            [min(0.0, log_probs[n] - log_mass) for n in kept],
            [ids[n] for n in kept],
            [cases[n] for n in kept],
        )

    def mask_logits(self, logits: mx.array, draft: Draft) -> mx.array:
        """Logits [R, V] of an anchor and its drafts, with -inf for tokens that are not allowed.

        Row j follows the first j drafts, in a tree the path to its node. Rows after the end of the
        text, and after a draft that is not allowed, stay as they are.
        """
        words = self._draft_masks(draft)
        words[~words.any(axis=1)] = ALL_ALLOWED  # none is allowed: `accept_tokens` raises
        bits = mx.array(words).view(mx.uint32)[..., None] >> mx.arange(32, dtype=mx.uint32)
        allowed = (bits & 1).astype(mx.bool_).reshape(len(words), -1)[:, : logits.shape[-1]]
        return mx.where(allowed, logits, mx.array(-mx.inf, dtype=logits.dtype))

    def _draft_masks(self, draft: Draft) -> np.ndarray:
        if draft.tree is not None:
            full = np.full(self._bitmask.words, ALL_ALLOWED, dtype=np.int32)
            masks = [self._mask_after(path) for path in draft.tree.paths()]
            return np.stack([full if mask is None else mask for mask in masks])
        tokens: list[int] = np.array(draft.tokens).tolist()
        rows = np.full((len(tokens) + 1, self._bitmask.words), ALL_ALLOWED, dtype=np.int32)
        with self._rollback():
            for place in range(len(rows)):
                before = tuple(tokens[:place])
                if self._reasoning is None:
                    self._fill(rows[place:], before, tokens[place:])
                    break
                rows[place] = self._mask(before)
                if place < len(tokens) and not self._consume(tokens[place]):
                    break
        return rows

    def _mask_after(self, path: tuple[int, ...]) -> np.ndarray | None:
        """The bitmask [words] after drafts; None after the end or after a forbidden draft."""
        if path not in self._masks_after:
            with self._rollback():
                for token in path:
                    if self.ended or not self._consume(token):
                        return None
                if self.ended:
                    return None
                self._masks_after[path] = self._mask(path)
        return self._masks_after[path]

    def _consume(self, token: int) -> bool:
        """Advance by a token; return False and change nothing if it is not allowed."""
        state = self._reasoning
        if state is None or state.may_end:
            if self._matcher.try_consume_tokens([token]) == 1:
                self._consumed.append(token)
                self._reasoning = None
                return True
            if state is None:
                return False
        if token in self._ends if state.allowed is None else token not in state.allowed:
            return False
        self._reasoning = state.advance(token)
        return True

    @contextmanager
    def _rollback(self) -> Iterator[None]:
        reasoning = self._reasoning
        committed = len(self._consumed)
        try:
            yield
        finally:
            if self._matcher.is_error():  # final for a matcher, also if only a draft caused it
                self._matcher = self._compiled.deep_copy()
                self._matcher.consume_tokens(self._consumed[:committed])
            elif len(self._consumed) > committed:
                self._matcher.rollback(len(self._consumed) - committed)
            del self._consumed[committed:]
            self._reasoning = reasoning

    def _mask(self, path: tuple[int, ...]) -> np.ndarray:
        """The bitmask [words] at the current place, which is after the drafts `path`."""
        state = self._reasoning
        rows = np.zeros((1, self._bitmask.words), dtype=np.int32)
        if state is None or state.may_end:
            self._fill(rows, path, [])
        if state is None:
            return rows[0]
        bits = rows[0].view(np.uint32)
        if state.allowed is None:
            bits[:] = 0xFFFFFFFF
            for token in self._ends:
                bits[token // 32] &= ~np.uint32(1 << token % 32)
        for token in state.allowed or ():
            bits[token // 32] |= np.uint32(1 << token % 32)
        return rows[0]

    def _fill(self, rows: np.ndarray, path: tuple[int, ...], drafts: list[int]) -> None:
        """The matcher's bitmasks before and after drafts, into rows [1 + drafts, words].

        `path`: the drafts before them. Where the matcher reaches one of its limits, the rows from
        there on are empty, and the answer ends with an error if it comes to this place.
        """
        rows[:] = 0
        self._bitmask.fill(self._matcher, drafts, rows)
        error = self._matcher.get_error()
        if error:
            empty = np.flatnonzero(~rows.any(axis=1))
            valid = int(empty[0]) if empty.size else len(drafts)
            self._errors_after[(*path, *drafts[:valid])] = error
