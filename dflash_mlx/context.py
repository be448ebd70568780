"""What a pair has read of one conversation: the tokens, the target's caches and the drafter's.

The two caches always cover the same tokens. Does not know text, or how tokens are chosen.
"""

from collections.abc import Callable

import mlx.core as mx

from .drafter import Drafter
from .errors import RewindError
from .sampling import HISTORY
from .target import Target

Progress = Callable[[int, int], None]
CHUNK = 2048  # tokens a prefill pass, as in mlx-lm
CLEAR_EVERY = 256  # tokens between returns of unused memory to the system, as in mlx-lm


class Context:
    """The read part of one conversation; without a drafter only the target reads."""

    def __init__(self, target: Target, drafter: Drafter | None):
        self.target = target
        self._drafter = drafter
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.tokens: list[int] = []
        self.target_cache = self.target.make_cache()
        self.draft_cache = None if self._drafter is None else self._drafter.make_cache()

    def adopt(self, other: "Context") -> None:
        """Go on, without a drafter, from what another context of this target has read.

        The other one must not be used any more.
        """
        assert self._drafter is None
        assert other.target is self.target
        self.tokens, self.target_cache = other.tokens, other.target_cache

    def reuse(self, prompt: list[int]) -> tuple[int, int]:
        """Keep what the prompt shares with the tokens read: how many were kept, how many lost.

        At least the prompt's last token is left to read. Where a cache cannot go back that far
        everything is forgotten, and what was shared is lost.
        """
        common = 0
        for old, new in zip(self.tokens, prompt[:-1], strict=False):
            if old != new:
                break
            common += 1
        try:
            self.rewind(common)
        except RewindError:
            self.clear()
        return len(self.tokens), common - len(self.tokens)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; RewindError, with nothing changed, if that cannot be."""
        self.target_cache.rewind(length)
        if self.draft_cache is not None:
            self.draft_cache.rewind(length)
        del self.tokens[length:]

    def read(self, tokens: list[int], progress: Progress, chunk: int = CHUNK) -> mx.array:
        """Prefill: read tokens and return the logits [1, V] after the last one.

        As in mlx-lm the last token is read alone. `progress(done, total)` is called between passes
        and may raise to stop there; what was read stays. Taps go to the drafter's keys and values
        at once, so none outlives its chunk.
        """
        total, done = len(tokens), 0
        progress(0, total)
        while True:
            step = min(chunk, total - done - 1) or 1
            logits = self._pass(tokens[done : done + step])
            done += step
            if done == total:
                progress(done, total)
                return logits[-1:]
            progress(done, total)
            mx.clear_cache()

    def _pass(self, tokens: list[int]) -> mx.array:
        logits, taps = self.target.forward(mx.array([tokens]), self.target_cache)
        if self.draft_cache is not None:
            self.draft_cache.absorb(taps)
            mx.eval(self.draft_cache.state)
        mx.eval(self.target_cache.state)
        self.tokens += tokens
        return logits[0]

    def history(self, anchor: int) -> list[int]:
        """The tokens that penalties look at, up to the anchor."""
        return [*self.tokens[1 - HISTORY :], anchor]

    def verify(self, anchor: int, drafts: mx.array) -> tuple[mx.array, mx.array]:
        """One target pass over [anchor, drafts]: logits [γ + 1, V] and taps [1, γ + 1, K * Ht].

        Follow it with `commit`.
        """
        block = mx.concatenate([mx.array([anchor]), drafts.astype(mx.int32)])[None]
        logits, taps = self.target.forward(block, self.target_cache)
        return logits[0], taps

    def commit(self, anchor: int, kept: tuple[int, ...], taps: mx.array) -> None:
        """Keep the anchor and the kept tokens but the last, which is the next anchor."""
        count = len(kept)
        self.target_cache.rewind(len(self.tokens) + count)
        if self.draft_cache is not None:
            self.draft_cache.absorb(taps[:, :count])
            mx.async_eval(self.draft_cache.state)
        before = len(self.tokens)
        self.tokens += (anchor, *kept[:-1])
        if before // CLEAR_EVERY != len(self.tokens) // CLEAR_EVERY:
            mx.clear_cache()
