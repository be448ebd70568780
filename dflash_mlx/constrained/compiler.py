"""Compiles grammars for one target's tokens with llguidance."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
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
        self._reading = Lock()  # of the vocabulary, which takes seconds, once for all threads
        self.compile = lru_cache(MAX_COMPILED)(self._compile)

    def _compile(self, grammar: Grammar) -> "LLMatcher":
        """The matcher at the start of a grammar, to be copied.

        Raises UsageError with llguidance's reason for a wrong grammar, and DFlashError if
        llguidance cannot read the tokenizer.
        """
        from llguidance import LLMatcher

        source = llguidance_source(grammar)
        with self._reading:
            tokenizer, bitmask = self._vocabulary
        matcher = LLMatcher(tokenizer, source, log_level=0)
        if error := matcher.get_error() or bitmask.error_at_start(matcher):
            raise grammar_error(grammar, error)
        return matcher

    def constrain(
        self, grammar: Grammar, generation_prompt: Sequence[int], stop_ids: frozenset[int]
    ) -> Constraint:
        """The constraint of an answer at its start.

        generation_prompt: the tokens that the answer continues. stop_ids: more tokens that end it.
        Raises as `_compile`.
        """
        matcher = self.compile(grammar)
        _, bitmask = self._vocabulary
        reasoning = None
        if not grammar.whole:
            reasoning = reasoning_state(self._tokenizer, generation_prompt)
        return Constraint(matcher, reasoning, bitmask, self._ends | stop_ids)

    @cached_property
    def _vocabulary(self) -> "tuple[LLTokenizer, Bitmask]":
        from llguidance.hf import from_tokenizer

        try:
            fast: Any = self._tokenizer._tokenizer  # llguidance looks at its class
            size = max(self._vocab_size, len(self._tokenizer))
            tokenizer = from_tokenizer(fast, n_vocab=size, eos_token=sorted(self._ends) or None)
        except Exception as error:  # transformers and llguidance raise several types
            raise DFlashError(
                f"llguidance cannot read this target's tokenizer ({first_line(error)}).",
                hint="leave schema and grammar out, or use a target that has a tokenizer.json",
            ) from error
        return tokenizer, Bitmask((tokenizer.vocab_size + 31) // 32, bitmask_filler())


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
