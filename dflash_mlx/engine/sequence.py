"""One sequence: its tokens, its caches, and the answer that is being generated.

Drafting needs a drafter's cache that covers the same tokens as the target's. Where a drafter's
cache fell behind, the next prompt is read again from there.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from dflash_mlx.constrained.constraint import Constraint
from dflash_mlx.drafters.base import DraftCache, Drafter
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.models.cache.target_cache import Snapshot
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.policy.acceptance import Acceptance
from dflash_mlx.policy.policy import Policy
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.sampling import HISTORY
from dflash_mlx.speculation.token_rules import TokenRules
from dflash_mlx.speculation.tree import Tree

from .prompt_chunks import PREFILL_STEP_SIZE
from .request import Request

EXACT_CHUNK = 256  # in exact mode passes end at its multiples, and at a prompt's last two tokens
CHUNK_AFTER_FAULT = 128  # tokens per pass: a small part of the memory and time of a usual one
CLEAR_EVERY = 256  # tokens between calls of mx.clear_cache, as in mlx-lm


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of a prompt that one round reads. After the `last` chunk the answer begins."""

    tokens: tuple[int, ...]
    last: bool


@dataclass(slots=True)
class AnswerState:
    """One answer that is being generated: its request, its acceptance rule, and its progress.

    `to_read`: what the caches must hold before the next decode step: the prompt, or after a fault
    of the GPU all tokens before the anchor. `failed_rounds`: those since the last committed token.
    `anchor`: the newest token, not yet in the caches; None while the prompt is read. `position`:
    tokens committed. `remaining`: how many may follow. `snapshots_at`: the lengths of the prompt at
    which the caches take a snapshot. `separate_last_token`: the prompt's last token has a pass of
    its own, as in mlx-lm. `acceptance`: of each drafter in this sequence. `finish_reason`: "stop",
    "length", or "error" if the answer failed; None before the end. `notes`: as in `Stats`.
    """

    request: Request
    rule: Match
    policy: Policy
    acceptance: list[Acceptance]
    block_size: int
    remaining: int
    snapshots_at: tuple[int, ...]
    separate_last_token: bool
    to_read: tuple[int, ...]
    constraint: Constraint | None = None
    token_rules: TokenRules | None = None
    anchor: int | None = None
    position: int = 0
    finish_reason: str | None = None
    failed_rounds: int = 0
    notes: list[str] = field(default_factory=list)

    def advance(self, tokens: tuple[int, ...]) -> None:
        self.failed_rounds = 0
        self.anchor = tokens[-1]
        self.remaining -= len(tokens)
        self.position += len(tokens)
        complete = self.constraint is not None and self.constraint.ended
        if complete or self.anchor in self.request.stop_ids:
            self.finish_reason = "stop"
        elif self.remaining <= 0:
            self.finish_reason = "length"


class Sequence:
    """The tokens that the caches hold, and the answer that continues them, if there is one.

    Several answers can follow one another, and reuse the tokens that their prompts share. A round
    need not include it. If `use_prefix_cache`, it reads and writes the engine's prefix cache.
    """

    def __init__(self, target: Target, *drafters: Drafter | None, use_prefix_cache: bool = True):
        """Each of the `drafters` gets a cache; None is ignored."""
        self.target = target
        self.drafters = tuple(drafter for drafter in drafters if drafter is not None)
        self.use_prefix_cache = use_prefix_cache
        self.faults_seen = 0  # of the engine's faults, those before the caches were made
        self.last_answer: AnswerState | None = None
        self.clear()

    def clear(self) -> None:
        self.tokens: list[int] = []
        self.target_cache = self.target.make_cache()
        self.draft_caches: list[DraftCache] = [drafter.make_cache() for drafter in self.drafters]
        self._follow()

    def fork(self) -> "Sequence":
        twin = copy(self)
        twin.tokens = list(self.tokens)
        twin.target_cache = self.target_cache.fork()
        twin.draft_caches = [cache.fork() for cache in self.draft_caches]
        twin._follow()
        if self.last_answer is not None:
            answer = copy(self.last_answer)
            answer.rule = copy(answer.rule)
            answer.acceptance = [known.fork() for known in answer.acceptance]
            if answer.constraint is not None:
                answer.constraint = answer.constraint.fork()
            twin.last_answer = answer
        return twin

    def _follow(self) -> None:
        for drafter, cache in zip(self.drafters, self.draft_caches, strict=True):
            drafter.follow(cache, self.target_cache)

    @property
    def draft_cache(self) -> Any:
        """The cache of the first drafter with a model, whose rows the prefix cache keeps, or None.

        It falls behind the target's cache during answers without drafts.
        """
        with_model = (
            cache
            for drafter, cache in zip(self.drafters, self.draft_caches, strict=True)
            if drafter.model is not None
        )
        return next(with_model, None)

    @property
    def answer(self) -> AnswerState:
        assert self.last_answer is not None
        return self.last_answer

    @property
    def unread(self) -> int:
        """Tokens that are still to be read before the next decode step."""
        answer = self.last_answer
        return 0 if answer is None else max(0, len(answer.to_read) - len(self.tokens))

    def next_chunk(self, chunk: int) -> PrefillChunk:
        """The next tokens to read: at most `chunk`, fewer after a fault of the GPU.

        In exact mode a chunk of the prompt ends at the next multiple of EXACT_CHUNK instead, and
        tokens after the prompt are read as in verify passes.
        """
        answer = self.answer
        prompt = len(answer.request.prompt)
        start = len(self.tokens)
        if self.target.kernels.exact:
            chunk = EXACT_CHUNK - start % EXACT_CHUNK if start < prompt else EXACT_ROWS
        elif answer.failed_rounds:
            chunk = min(chunk, CHUNK_AFTER_FAULT)
        ends = [start + chunk, len(answer.to_read)]
        if answer.separate_last_token:
            ends += [place for place in (prompt - 1, prompt) if start < place]
        if self.target_cache.needs_snapshots:
            ends += [place for place in answer.snapshots_at if start < place]
        end = min(ends)
        last = answer.anchor is None and end == prompt
        return PrefillChunk(answer.to_read[start:end], last)

    def read_again(self) -> None:
        """Drop the caches. The answer, if it goes on, reads all its tokens again."""
        answer = self.last_answer
        if answer is not None and not self.unread:
            answer.to_read = tuple(self.tokens)
        self.clear()

    def align(self, length: int) -> int:
        """How many of a prompt's first `length` tokens other prompts may reuse.

        In exact mode only whole chunks: in a long pass, the bits of a row depend on the other rows.
        """
        return length // EXACT_CHUNK * EXACT_CHUNK if self.target.kernels.exact else length

    @property
    def reusable(self) -> int:
        """How many of the tokens later prompts may reuse; in exact mode, none of an answer's."""
        if not self.target.kernels.exact:
            return len(self.tokens)
        prompt = 0 if self.last_answer is None else len(self.answer.request.prompt) - 1
        return self.align(min(prompt, len(self.tokens)))

    def reuse(self, prompt: Iterable[int], *, drafting: bool) -> tuple[int, int]:
        """Keep the tokens that a prompt begins with. Returns how many are kept, and how many lost.

        The prompt's last token is never kept. Tokens are lost if the caches can only rewind to an
        earlier place. If `drafting`, tokens that the drafter has not read are lost, too.
        """
        common = 0
        for old, new in zip(self.tokens, [*prompt][:-1], strict=False):
            if old != new:
                break
            common += 1
        continues = common == len(self.tokens)
        common = self.align(min(common, self.reusable))
        wanted = common
        if drafting and self.draft_cache is not None:
            wanted = min(common, self.draft_cache.offset)
        if kept := self.target_cache.reachable(wanted):
            self.rewind(kept)
        else:
            self.clear()
        if continues and kept == common:
            self.target_cache.snapshot()  # the end of an answer
        return kept, common - kept

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens. If that fails, raises RewindError and changes nothing."""
        self.target_cache.rewind(length)
        for cache in self.draft_caches:
            if cache.offset > length:
                cache.rewind(length)
        del self.tokens[length:]

    def extend(
        self,
        tokens: list[int],
        target: list[tuple[Rows, ...]],
        draft: list[tuple[Rows, ...]] | None,
        snapshot: Snapshot | None,
    ) -> None:
        """Append tokens with their rows for the caches of both models, as if they had been read.

        Without rows for the drafter (`draft`), its cache falls behind. `snapshot`: the states of
        the target's recurrent and sliding layers, if it has any.
        """
        before = len(self.tokens)
        self.target_cache.extend(target, snapshot)
        self.tokens += tokens
        assert self.target_cache.offset == len(self.tokens)
        for drafter, cache in zip(self.drafters, self.draft_caches, strict=True):
            rows = [] if drafter.model is None else draft
            if rows is not None and cache.offset == before:
                cache.extend(rows, tokens)
                assert cache.offset == len(self.tokens)

    @property
    def anchor(self) -> int:
        assert self.answer.anchor is not None
        return self.answer.anchor

    @property
    def history(self) -> list[int]:
        return [*self.tokens[1 - HISTORY :], self.anchor]

    def answer_tokens(self, most: int) -> list[int]:
        """The last tokens of the answer, at least `most` if it has as many."""
        answer = self.answer
        if answer.anchor is None:
            return []
        start = max(len(answer.request.prompt), len(self.tokens) - most)
        return [*self.tokens[start:], answer.anchor]

    def commit(
        self,
        tokens: tuple[int, ...],
        taps: mx.array,
        path: tuple[int, ...] | None = None,
        *,
        all_kept: bool = False,
    ) -> None:
        """Keep `tokens` of the last pass, whose R rows have the taps [1, R, K * Ht].

        They are the first rows, or those of `path` in a tree, from the anchor's. Other rows are
        dropped. `all_kept`: there are none, so a later pass may have begun already.
        """
        count = len(tokens)
        if path is not None:
            self.target_cache.keep_path(path)
            taps = taps[:, mx.array(path)]
        elif not all_kept:
            self.target_cache.rewind(len(self.tokens) + count)
        self.append(tokens, taps[:, :count])

    def rows(self, anchor: mx.array, drafts: mx.array, tree: Tree | None = None) -> SequenceRows:
        """The target's input that verifies drafts [γ] after an anchor [1]."""
        tokens = mx.concatenate([anchor, drafts.astype(mx.int32)]) if drafts.size else anchor
        return SequenceRows(self.target_cache, tokens, tree)

    def verify(self, anchor: int, drafts: mx.array, tree: Tree | None = None) -> SequencePass:
        """One pass over [anchor, drafts] of this sequence alone. Call `commit` next."""
        return self.target.read([self.rows(mx.array([anchor]), drafts, tree)])[0]

    def read(self, tokens: list[int], chunk: int = PREFILL_STEP_SIZE) -> mx.array:
        """Read tokens of this sequence alone; returns the logits [1, V] after the last one."""
        logits = mx.zeros((1, 0))
        for first in range(0, len(tokens), chunk):
            part = tokens[first : first + chunk]
            rows = SequenceRows(self.target_cache, mx.array(part), tape=False, last=True)
            (output,) = self.target.read([rows])
            logits = output.logits
            self.append(tuple(part), output.taps)
            mx.eval(logits, self.state)
        return logits

    @property
    def state(self) -> list[Any]:
        """The arrays of all caches, to evaluate after a chunk of a prompt."""
        return [self.target_cache.state, *(cache.state for cache in self.draft_caches)]

    def append(self, tokens: tuple[int, ...], taps: mx.array) -> None:
        """Append tokens that the target's cache holds, and give the drafters their taps."""
        drafting = self.last_answer is None or self.answer.block_size > 1
        for drafter, cache in zip(self.drafters, self.draft_caches, strict=True):
            if drafting or drafter.model is None:
                assert cache.offset == len(self.tokens)
                cache.append(taps, tokens)
        before = len(self.tokens)
        self.tokens += tokens
        if before // CLEAR_EVERY != len(self.tokens) // CLEAR_EVERY:
            mx.clear_cache()
