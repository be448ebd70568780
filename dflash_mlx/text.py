"""From tokens to readable text: whole characters, thinking apart, ended by stop strings.

Text that may be the beginning of a marker or of a stop string is held back until it is known not to
be. Does not know models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True, slots=True)
class Piece:
    """What became readable: `text` of the answer, `thinking` before it; `stopped` by a string."""

    text: str = ""
    thinking: str = ""
    stopped: bool = False


class Reader:
    """Reads one answer's tokens as they come."""

    def __init__(
        self, tokenizer: TokenizerWrapper, prompt: list[int], stop_strings: Sequence[str] = ()
    ):
        self._detokenizer = tokenizer.detokenizer
        stops = (stop_strings,) if isinstance(stop_strings, str) else stop_strings
        self._stops = tuple(s for s in stops if s)
        self._start = tokenizer.think_start if tokenizer.has_thinking else None
        self._end = tokenizer.think_end if tokenizer.has_thinking else None
        self._thinking = self._start is not None and opens_thinking(tokenizer, prompt)
        self._fresh = True
        self._held = ""

    def read(self, tokens: Sequence[int]) -> Piece:
        """Add tokens; stop tokens are the caller's to leave out."""
        for token in tokens:
            self._detokenizer.add_token(token)
            self._held += self._detokenizer.last_segment
        return self._release(final=False)

    def finish(self) -> Piece:
        """The rest, at the end of the answer."""
        self._detokenizer.finalize()
        self._held += self._detokenizer.last_segment
        return self._release(final=True)

    def _release(self, *, final: bool) -> Piece:
        text = thinking = ""
        if self._fresh and self._start and not self._thinking:
            opening = self._held.lstrip()
            if not final and (not opening or self._start.startswith(opening)):
                return Piece()
            if opening.startswith(self._start):
                self._thinking, self._held = True, opening.removeprefix(self._start)
        self._fresh = False
        if self._thinking and self._end is not None:
            thinking, found, rest = self._held.partition(self._end)
            if not found:
                keep = 0 if final else held_back(self._held, (self._end,))
                self._held = thinking[len(thinking) - keep :]
                return Piece(thinking=thinking[: len(thinking) - keep])
            self._thinking, self._held = False, rest
        at = min((i for s in self._stops if (i := self._held.find(s)) >= 0), default=-1)
        if at >= 0:
            text, self._held = self._held[:at], ""
            return Piece(text, thinking, stopped=True)
        keep = 0 if final else held_back(self._held, self._stops)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return Piece(text, thinking)


def held_back(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that could be the start of a marker."""
    longest = max((len(m) for m in markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(m.startswith(text[-size:]) for m in markers):
            return size
    return 0


def opens_thinking(tokenizer: TokenizerWrapper, prompt: list[int]) -> bool:
    """Whether the prompt ends inside a thinking part that it opened."""
    return tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt)
