"""Compiles grammars for one target's tokens with llguidance."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.grammar import Grammar

from .constraint import Bitmask, Constraint, reasoning_state
from .grammar import grammar_error, llguidance_source

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 32  # grammars


class Compiler:
    """Compiles grammars, and keeps the last ones. May be used from any thread."""

    def __init__(self, tokenizer: TokenizerWrapper, vocab_size: int, ends: frozenset[int]):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = ends
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = Lock()
        self._vocabulary_lock = Lock()
        self._vocabulary: tuple[LLTokenizer, Bitmask] | None = None

    def compile(self, grammar: Grammar) -> "LLMatcher":
        """The matcher at the start of a grammar, to be copied.

        Raises UsageError with llguidance's reason for a wrong grammar, and DFlashError if
        llguidance cannot read the tokenizer.
        """
        with self._lock:
            matcher = self._compiled.get(grammar)
        if matcher is None:
            from llguidance import LLMatcher

            source = llguidance_source(grammar)
            tokenizer, bitmask = self._read_vocabulary()
            matcher = LLMatcher(tokenizer, source, log_level=0)
            if error := matcher.get_error() or bitmask.error_at_start(matcher):
                raise grammar_error(grammar, error)
        with self._lock:
            self._compiled[grammar] = matcher
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return matcher

    def constrain(
        self, grammar: Grammar, generation_prompt: Sequence[int], stop_ids: frozenset[int]
    ) -> Constraint:
        """The constraint of an answer at its start.

        generation_prompt: the tokens that the answer continues. stop_ids: more tokens that end it.
        Raises as `compile`.
        """
        matcher = self.compile(grammar)
        _, bitmask = self._read_vocabulary()
        reasoning = None
        if not grammar.whole:
            reasoning = reasoning_state(self._tokenizer, generation_prompt)
        return Constraint(matcher, reasoning, bitmask, self._ends | stop_ids)

    def _read_vocabulary(self) -> "tuple[LLTokenizer, Bitmask]":
        with self._vocabulary_lock:
            if self._vocabulary is None:
                tokenizer = self._build()
                words = (tokenizer.vocab_size + 31) // 32
                self._vocabulary = tokenizer, Bitmask(words, bitmask_filler())
            return self._vocabulary

    def _build(self) -> "LLTokenizer":
        from llguidance.hf import from_tokenizer

        try:
            fast: Any = self._tokenizer._tokenizer  # llguidance looks at its class
            size = max(self._vocab_size, len(self._tokenizer))
            return from_tokenizer(fast, n_vocab=size, eos_token=sorted(self._ends) or None)
        except Exception as error:  # transformers and llguidance raise several types
            raise DFlashError(
                f"llguidance cannot read this target's tokenizer ({first_line(error)}).",
                hint="leave schema and grammar out, or use a target that has a tokenizer.json",
            ) from error


def bitmask_filler() -> Callable[["LLMatcher", list[int], np.ndarray], None]:
    """A function for `Bitmask.fill`, which computes in one thread."""
    from llguidance import LLExecutor
    from llguidance import numpy as bitmasks

    executor = LLExecutor(num_threads=1)

    def fill(matcher: "LLMatcher", drafts: list[int], rows: np.ndarray) -> None:
        if drafts:
            work = [(matcher, 0, drafts)]
            bitmasks.fill_next_token_bitmask_par_with_draft_tokens(executor, work, rows)
        else:
            bitmasks.fill_next_token_bitmask(matcher, rows)

    return fill
