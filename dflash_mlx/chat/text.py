"""Streaming detokenization of an answer: thinking split from text, ended by stop strings.

Text that may be the start of a stop string is held back until it is known not to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .thinking import TagSplitter, partial_match, splitter


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
            thinking, self._held = thinking + new_thinking, self._held + text
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
            text, self._held = self._held[:at], ""
            return Piece(text, thinking, stop)
        cut = len(self._held) - (0 if final else partial_match(self._held, self._stops))
        text, self._held = self._held[:cut], self._held[cut:]
        return Piece(text, thinking)
