"""What a pair has read of one conversation: the tokens, the target's caches and the drafter's.

The two caches always cover the same tokens. Does not know text, or how tokens are chosen.
"""

from collections.abc import Callable
from contextlib import nullcontext

import mlx.core as mx

from .drafter.drafter import Drafter
from .speculation.sampling import HISTORY
from .speculation.tree import Tree
from .target.target import Target

Progress = Callable[[int, int], None]
Pass = tuple[mx.array, mx.array]  # logits [S, V] and taps [1, S, K * Ht]
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
        self._begun: Pass | None = None

    def adopt(self, other: "Context") -> None:
        """Go on, without a drafter, from what another context of this target has read.

        The other one must not be used any more.
        """
        assert self._drafter is None
        assert other.target is self.target
        self.tokens, self.target_cache = other.tokens, other.target_cache

    def reuse(self, prompt: list[int]) -> tuple[int, int]:
        """Keep what the prompt shares with the tokens read: how many were kept, how many lost.

        At least the prompt's last token is left to read. Where the caches cannot go back to just
        there, they go back further, and what was shared from there on is lost.
        """
        common = 0
        for old, new in zip(self.tokens, prompt[:-1], strict=False):
            if old != new:
                break
            common += 1
        goes_on = common == len(self.tokens)
        if kept := self.target_cache.reachable(common):
            self.rewind(kept)
        else:
            self.clear()
        if goes_on and kept == common:
            self.target_cache.snapshot()  # the end of an answer
        return kept, common - kept

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; RewindError, with nothing changed, if that cannot be."""
        self.target_cache.rewind(length)
        self._begun = None
        if self.draft_cache is not None:
            self.draft_cache.rewind(length)
        del self.tokens[length:]

    def read(
        self, tokens: list[int], progress: Progress, chunk: int = CHUNK, turn: int | None = None
    ) -> mx.array:
        """Prefill: read tokens and return the logits [1, V] after the last one.

        As in mlx-lm the last token is read alone. `progress(done, total)` is called between passes
        and may raise to stop there; what was read stays. Taps go to the drafter's keys and values
        at once, so none outlives its chunk. After `turn` of the tokens (all but the last, if not
        given) is a place that the caches can go back to later.
        """
        total = len(tokens)
        turn = total - 1 if turn is None else turn
        progress(0, total)
        self.fill(tokens[: max(0, turn)], lambda done: progress(done, total), chunk)
        if turn >= 0:
            self.target_cache.snapshot()
        start = max(0, turn)
        self.fill(tokens[start:-1], lambda done: progress(start + done, total), chunk)
        logits = self._pass(tokens[-1:])
        progress(total, total)
        return logits[-1:]

    def fill(self, tokens: list[int], progress: Callable[[int], None], chunk: int = CHUNK) -> None:
        """Read tokens, a chunk a pass; `progress(done)` is called after each."""
        for first in range(0, len(tokens), chunk):
            part = tokens[first : first + chunk]
            self._pass(part)
            progress(first + len(part))
            mx.clear_cache()

    def _pass(self, tokens: list[int]) -> mx.array:
        self.target_cache.tape(False)
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

    def verify(self, anchor: int, drafts: mx.array, tree: Tree | None = None) -> Pass:
        """One target pass over [anchor, drafts]: logits [γ + 1, V] and taps [1, γ + 1, K * Ht].

        The drafts are a chain, or the nodes of a tree. Follow it with `commit`.
        """
        if self._begun is not None:  # in vain
            self.rewind(len(self.tokens))
        block = mx.concatenate([mx.array([anchor]), drafts.astype(mx.int32)])[None]
        self.target_cache.tape(True)
        with nullcontext() if tree is None else self.target_cache.reading(tree):
            logits, taps = self.target.forward(block, self.target_cache)
        return logits[0], taps

    def step(self, anchor: int) -> Pass:
        """A pass over the anchor alone, which was begun for it."""
        begun, self._begun = self._begun, None
        assert begun is not None
        return begun

    def begin(self, token: mx.array) -> None:
        """Begin the next `step`, over a token [1] that nobody may have read yet, if none was.

        So the host is not waited for. Until it is committed the target's cache is a token ahead.
        """
        if self._begun is None:
            self.target_cache.tape(True)
            logits, taps = self.target.forward(token[None], self.target_cache)
            mx.async_eval(logits)
            self._begun = logits[0], taps

    def commit(
        self,
        anchor: int,
        kept: tuple[int, ...],
        taps: mx.array,
        path: tuple[int, ...] | None = None,
    ) -> None:
        """Keep the anchor and the kept tokens but the last, which is the next anchor.

        `path` are the rows of a tree's accepted drafts, of which the kept ones are the first.
        """
        count = len(kept)
        if path is None:
            if self._begun is None:  # else nothing was drafted, and the row ahead stays
                self.target_cache.rewind(len(self.tokens) + count)
            taps = taps[:, :count]
        else:
            rows = (0, *path)[:count]
            self.target_cache.pick(rows)
            taps = taps[:, mx.array(rows)]
        if self.draft_cache is not None:
            self.draft_cache.absorb(taps)
        before = len(self.tokens)
        self.tokens += (anchor, *kept[:-1])
        if before // CLEAR_EVERY != len(self.tokens) // CLEAR_EVERY:
            mx.clear_cache()
