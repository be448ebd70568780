"""The engine: one round of many sequences, as in the DFlash paper (arXiv 2602.06036, section 3).

    schedule -> propose -> verify -> accept -> run ahead -> commit -> remember

Tokens in, blocks out. A round has one `ScheduledStep` for each sequence, which these verbs fill in;
nothing is computed outside them. A draft becomes a token in `commit`. All of it runs in the one
thread that owns MLX (worker_thread.py).
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from time import perf_counter
from weakref import WeakKeyDictionary, WeakSet

import mlx.core as mx

from dflash_mlx.constrained.compiler import Compiler
from dflash_mlx.drafters.base import Drafter
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.acceptance import make_rule
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.types import Block

from .prefix_cache.prefix_cache import PrefixCache
from .request import Request
from .round import ScheduledStep, StepKind, propose
from .scheduler import Scheduler
from .sequence import AnswerState, Sequence

CHUNK = 2048  # tokens of a prompt a pass, as in mlx-lm


class Engine:
    """Answers for many sequences of one target at once; what it learns of them stays with it."""

    def __init__(self, target: Target, *drafters: Drafter | None, compiler: Compiler | None = None):
        """In the order in which the fixed modes prefer the `drafters`; None is no drafter.

        `compiler` compiles the grammars of requests; not needed for requests without one.
        """
        self.target = target
        self.drafters = tuple(drafter for drafter in drafters if drafter is not None)
        self.compiler = compiler
        self.scheduler = Scheduler(target, self.drafters)
        self.prefixes = PrefixCache()
        self.chunk = CHUNK
        self.passes = 0  # of the target so far
        self.rows = 0  # that it has read in them
        self._passes_ahead: WeakKeyDictionary[Sequence, SequencePass] = WeakKeyDictionary()
        self._answering: WeakSet[Sequence] = WeakSet()  # begun, and not stopped

    def step(self, sequences: Many[Sequence]) -> list[Block | DFlashError]:
        """One round: what each sequence commits, or why it cannot go on.

        A sequence whose prompt is not read to its end commits an empty block. Whatever is raised,
        what was not committed is undone.
        """
        began = perf_counter()
        try:
            batch = self.scheduler.schedule(sequences, ahead=self._passes_ahead, chunk=self.chunk)
            self._propose(batch)
            self._verify(batch)
            self._accept(batch)
            self._run_ahead(batch)
            self._commit(batch)
            self._remember(batch)
            self.scheduler.update(batch, perf_counter() - began)
        except BaseException:
            for sequence in sequences:
                self._passes_ahead.pop(sequence, None)
                sequence.rewind(len(sequence.tokens))
            raise
        return [step.result for step in batch]

    def _propose(self, batch: list[ScheduledStep]) -> None:
        """Draft the blocks, in a pass for each drafter and width; then choose how much of each is
        verified.
        """
        for step in batch:
            step.draft_forced()
        drafting = [step for step in batch if step.drafter is not None]
        for number, width in sorted({(s.drafter or 0, s.answer.block_size) for s in drafting}):
            group = [s for s in drafting if (s.drafter, s.answer.block_size) == (number, width)]
            drafter = self.drafters[number]
            caches = [step.sequence.draft_caches[number] for step in group]
            blocks = drafter.draft(caches, [step.sequence.anchor for step in group], width)
            policies = {step.answer.policy for step in group}
            reads = {p: drafter.model is None or p.wants_confidence() for p in policies}
            for step, block in zip(group, blocks, strict=True):
                step.proposal = propose(step.sequence, block, confidence=reads[step.answer.policy])
        self.scheduler.choose(batch)

    def _verify(self, batch: list[ScheduledStep]) -> None:
        """One target pass over the tokens of all: each anchor with its drafts, prefill chunks."""
        for step in batch:
            step.output = self._passes_ahead.pop(step.sequence, None)
        queries = {step: step.query() for step in batch if step.output is None}
        for group in self._passes_for(queries):
            outputs = self.target.read([queries[step] for step in group], at_once=True)
            for step, output in zip(group, outputs, strict=True):
                step.output = output
            self.passes += 1
            self.rows += sum(queries[step].tokens.size for step in group)

    def _accept(self, batch: list[ScheduledStep]) -> None:
        """Apply each sequence's acceptance rule to the target's logits; nothing is read yet."""
        for step in batch:
            step.choose_tokens()
        mx.async_eval(*[step.outcome for step in batch if step.outcome is not None])

    def _run_ahead(self, batch: list[ScheduledStep]) -> None:
        """Begin the next decode steps before anybody has read the tokens they go on from."""
        if any(step.choice is None for step in batch):
            return
        if not all(self.scheduler.may_run_ahead(step.sequence) for step in batch):
            return
        queries = {}
        for step in batch:
            assert step.choice is not None
            queries[step] = step.sequence.rows(step.choice, Draft.none().tokens)
        for group in self._passes_for(queries):
            outputs = self.target.read([queries[step] for step in group])
            self.passes += 1
            self.rows += len(group)
            mx.async_eval([output.logits for output in outputs])
            for step, output in zip(group, outputs, strict=True):
                self._passes_ahead[step.sequence] = output

    def _commit(self, batch: list[ScheduledStep]) -> None:
        """Read the outcomes: accepted drafts and the bonus token become part of each sequence."""
        for step in batch:
            try:
                step.commit()
            except DFlashError as error:
                step.error = error
                self._answering.discard(step.sequence)
                self._passes_ahead.pop(step.sequence, None)
                step.sequence.clear()  # what it has read may be the cause

    def _remember(self, batch: list[ScheduledStep]) -> None:
        """Keep in the prefix cache what was read of prompts, and the answers that have ended."""
        for step in batch:
            if step.error is not None:
                continue
            if step.answer.finish_reason:
                self.stop(step.sequence)
            elif step.kind is StepKind.PREFILL:
                self.prefixes.keep(step.sequence)

    def begin(self, sequence: Sequence, request: Request, *snapshots_at: int) -> tuple[int, int]:
        """Put a request to a sequence: how many prompt tokens are not read, how many are lost.

        After each of `snapshots_at` tokens of it other prompts may go on otherwise. UsageError for
        what the target or the drafter cannot do.
        """
        target, prompt = self.target, request.prompt
        room = target.context_length - len(prompt)
        biased = [token for token, _ in request.sampling.logit_bias]
        for what, tokens in (("a prompt token", prompt), ("a token of logit_bias", biased)):
            if min(tokens, default=0) < 0 or max(tokens, default=0) >= target.vocab_size:
                raise UsageError(
                    f"{what} is outside the vocabulary of {target.vocab_size}.",
                    hint="use ids of this target's tokenizer",
                )
        if room < 1:
            raise UsageError(
                f"the prompt has {len(prompt):,} tokens, the context holds "
                f"{target.context_length:,}.",
                hint="shorten the prompt",
            )
        rule = make_rule(request.accept, request.sampling, target.vocab_size, target.kernels)
        constraint = None
        if request.structure is not None:
            assert self.compiler is not None
            constraint = self.compiler.constrain(
                request.structure, request.going_on_from, request.stop_ids
            )
        width = self.scheduler.block_size(request)
        idle = not any(other is not sequence for other in self._answering)
        policy = self.scheduler.policy_for(request, depth=len(prompt), idle=idle)
        self.stop(sequence)
        kept, lost = sequence.reuse(prompt, drafting=width > 1)
        reuse = self.prefixes.extend(sequence, prompt, drafting=width > 1)
        sequence.last_answer = AnswerState(
            request,
            rule,
            policy,
            policy.new_sequence(len(self.drafters)),
            block_size=width,
            remaining=min(request.token_limit, room),
            snapshots_at=tuple(sequence.align(n) for n in (*snapshots_at, reuse.branch)),
            last_alone=request.mode == "baseline" or target.kernels.exact,
            constraint=constraint,
        )
        self._answering.add(sequence)
        return kept + reuse.taken, max(0, lost - reuse.taken)

    def stop(self, sequence: Sequence, length: int | None = None) -> None:
        """Drop what was run ahead for a sequence, and tokens behind `length`; it may go on later.

        Where the caches cannot go back to `length`, its tokens stay until the next prompt. What
        stays may serve other prompts.
        """
        self._answering.discard(sequence)
        if self._passes_ahead.pop(sequence, None) is not None:
            sequence.rewind(len(sequence.tokens))
        shown = len(sequence.tokens) if length is None else length
        if shown < len(sequence.tokens) and sequence.target_cache.can_rewind(shown):
            sequence.rewind(shown)
        self.prefixes.keep(sequence, ended=True)

    def _passes_for(
        self, queries: dict[ScheduledStep, SequenceRows]
    ) -> Iterator[list[ScheduledStep]]:
        """Which steps share a pass: all; in exact mode as many rows as are known to be exact."""
        if not queries:
            return
        group: list[ScheduledStep] = []
        rows = 0
        for step, query in queries.items():
            rows += query.tokens.size
            if group and self.target.kernels.exact and rows > EXACT_ROWS:
                yield group
                group = []
                rows = query.tokens.size
            group.append(step)
        yield group
