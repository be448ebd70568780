"""Grammars as llguidance compiles them for one tokenizer."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.grammar import Grammar

from .constraint import Constraint, Masks, lead_after
from .grammar import load_llguidance, refused, source_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# From grammars to matchers of one target's tokens.

KEPT = 32  # compiled grammars


class Compiler:
    """The grammars of one target."""

    def __init__(self, tokenizer: TokenizerWrapper, vocab_size: int, ends: frozenset[int]):
        self._tokenizer = tokenizer
        self._columns = vocab_size
        self._ends = ends
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = Lock()
        self._reading = Lock()
        self._vocabulary: tuple[LLTokenizer, Masks] | None = None

    def compile(self, grammar: Grammar) -> "LLMatcher":
        """The matcher at a grammar's beginning, which nobody may move: copy it.

        UsageError with llguidance's reason for a grammar that it does not take; DFlashError where
        it is not installed, or does not know the tokenizer.
        """
        with self._lock:
            matcher = self._kept.get(grammar)
        if matcher is None:
            source = source_of(grammar)
            guide = load_llguidance()
            matcher = guide.LLMatcher(self._read()[0], source, log_level=0)
            if matcher.is_error():
                raise refused(grammar, matcher.get_error())
        with self._lock:
            self._kept[grammar] = matcher
            self._kept.move_to_end(grammar)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return matcher

    def constrain(
        self, grammar: Grammar, opening: Sequence[int], stop_ids: frozenset[int]
    ) -> Constraint:
        """The constraint of an answer at its beginning. Raises as `compile`.

        opening: the tokens that it goes on from. stop_ids: further tokens that end it; ends that
        the target does not know are no ends to the grammar.
        """
        lead = None if grammar.whole else lead_after(self._tokenizer, opening)
        return Constraint(self.compile(grammar), lead, self._read()[1], self._ends | stop_ids)

    def _read(self) -> "tuple[LLTokenizer, Masks]":
        """The vocabulary, read once."""
        with self._reading:
            if self._vocabulary is None:
                trie = self._build()
                self._vocabulary = trie, Masks((trie.vocab_size + 31) // 32, filler())
            return self._vocabulary

    def _build(self) -> "LLTokenizer":
        from llguidance.hf import from_tokenizer

        try:
            fast: Any = self._tokenizer._tokenizer  # llguidance looks at its class
            size = max(self._columns, len(self._tokenizer))
            return from_tokenizer(fast, n_vocab=size, eos_token=sorted(self._ends) or None)
        except Exception as error:  # transformers and llguidance raise several types
            raise DFlashError(
                f"llguidance cannot read this target's tokenizer ({first_line(error)}).",
                hint="leave schema and grammar out, or use a target that has a tokenizer.json",
            ) from error


def filler() -> Callable[["LLMatcher", list[int], np.ndarray], None]:
    """What `Masks.fill` is: llguidance's masks of one answer's rows, in one thread."""
    from llguidance import LLExecutor
    from llguidance import numpy as rows_of

    executor = LLExecutor(num_threads=1)

    def fill(matcher: "LLMatcher", drafts: list[int], rows: np.ndarray) -> None:
        if drafts:
            work = [(matcher, 0, drafts)]
            rows_of.fill_next_token_bitmask_par_with_draft_tokens(executor, work, rows)
        else:
            rows_of.fill_next_token_bitmask(matcher, rows)

    return fill
