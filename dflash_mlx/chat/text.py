"""From tokens to readable text: whole characters, thinking apart, ended by stop strings.

Text that may be the beginning of a stop string is held back until it is known not to be. Does not
know models, or how thinking is marked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .thinking import held_back, splitter


@dataclass(frozen=True, slots=True)
class Piece:
    """What became readable: `text` of the answer, `thinking` before it; `stopped` by a string."""

    text: str = ""
    thinking: str = ""
    stopped: bool = False


class Reader:
    """Reads one answer's tokens as they come; `prompt` is what it goes on from, or its last part.

    Calls of tools are text like any other: nothing is read into them.
    """

    def __init__(
        self, tokenizer: TokenizerWrapper, prompt: Sequence[int], stop_strings: Sequence[str] = ()
    ):
        self._detokenizer = tokenizer.detokenizer
        self._splitter = splitter(tokenizer, prompt)
        stops = (stop_strings,) if isinstance(stop_strings, str) else stop_strings
        self._stops = tuple(s for s in stops if s)
        self._held = ""

    def read(self, tokens: Sequence[int]) -> Piece:
        """Add tokens; stop tokens are the caller's to leave out."""
        thinking = ""
        for token in tokens:
            self._detokenizer.add_token(token)
            thought, said = self._splitter.feed(token, self._detokenizer.last_segment)
            thinking, self._held = thinking + thought, self._held + said
        return self._release(thinking, final=False)

    def finish(self) -> Piece:
        """The rest, at the end of the answer."""
        self._detokenizer.finalize()
        thinking, said = self._splitter.finish(self._detokenizer.last_segment)
        self._held += said
        return self._release(thinking, final=True)

    def _release(self, thinking: str, *, final: bool) -> Piece:
        at = min((i for s in self._stops if (i := self._held.find(s)) >= 0), default=-1)
        if at >= 0:
            text, self._held = self._held[:at], ""
            return Piece(text, thinking, stopped=True)
        cut = len(self._held) - (0 if final else held_back(self._held, self._stops))
        text, self._held = self._held[:cut], self._held[cut:]
        return Piece(text, thinking)
