"""The engine: one round of many sequences, as in the DFlash paper (arXiv 2602.06036, section 3).

    schedule -> propose -> verify -> accept -> run ahead -> commit -> remember

`Engine.step` runs one round. A round has one `ScheduledStep` for each sequence, which these verbs
fill in; nothing is computed outside them. A draft becomes a token in `Engine._commit`. Everything
runs in the one thread that owns MLX (worker_thread.py).
"""

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Many
from time import perf_counter
from weakref import WeakKeyDictionary, WeakSet

import mlx.core as mx

from dflash_mlx.constrained.compiler import Compiler
from dflash_mlx.drafters.base import Drafter
from dflash_mlx.errors import DFlashError, PromptTooLong, UsageError
from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.acceptance import make_rule
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.types import Block

from .prefix_cache.prefix_cache import PrefixCache
from .request import Request
from .round import ScheduledStep, StepKind, propose
from .scheduler import Scheduler
from .sequence import PREFILL_STEP_SIZE, AnswerState, Sequence

log = logging.getLogger(__name__)


class Engine:
    """Generates answers for many sequences of one target at once.

    passes, rows: how many passes of the target were run so far, and how many tokens they read.
    between_answers: work that is done step by step while no answer is generated; None if none.
    """

    def __init__(self, target: Target, *drafters: Drafter | None, compiler: Compiler | None = None):
        """Modes other than auto use the first of the `drafters` that can draft; None is ignored.

        `compiler` compiles the grammars of requests; only those requests need it.
        """
        self.target = target
        self.drafters = tuple(drafter for drafter in drafters if drafter is not None)
        self.compiler = compiler
        self.scheduler = Scheduler(target, self.drafters)
        self.prefix_cache = PrefixCache()
        self.prefill_step_size = PREFILL_STEP_SIZE
        self.passes = 0
        self.rows = 0
        self.between_answers: Iterator[None] | None = None
        self._passes_ahead: WeakKeyDictionary[Sequence, SequencePass] = WeakKeyDictionary()
        self._running: WeakSet[Sequence] = WeakSet()

    def step(self, sequences: Many[Sequence]) -> list[Block | DFlashError]:
        """Run one round: the block that each sequence commits, or the error that ends its answer.

        The block is empty while the sequence's prompt is being read. After an exception, everything
        that the round has not committed is undone; see `_undo`.
        """
        began = perf_counter()
        try:
            batch = self.scheduler.schedule(
                sequences, ahead=self._passes_ahead, prefill_step_size=self.prefill_step_size
            )
            self._propose(batch)
            self._verify(batch)
            self._accept(batch)
            self._run_ahead(batch)
            self._commit(batch)
            self._remember(batch)
            self.scheduler.update(batch, perf_counter() - began)
        except BaseException:
            for sequence in sequences:
                self._undo(sequence)
            raise
        return [step.result for step in batch]

    def _propose(self, batch: list[ScheduledStep]) -> None:
        """Draft the blocks, in one pass for each drafter and block size; then choose how many
        drafts of each are verified.
        """
        groups: dict[tuple[int, int], list[ScheduledStep]] = {}
        for step in batch:
            step.draft_forced_tokens()
            if step.drafter is not None:
                groups.setdefault((step.drafter, step.answer.block_size), []).append(step)
        for number, width in sorted(groups):
            group = groups[number, width]
            drafter = self.drafters[number]
            caches = [step.sequence.draft_caches[number] for step in group]
            anchors = [step.sequence.anchor for step in group]
            blocks = drafter.draft(caches, anchors, width)
            policies = {step.answer.policy for step in group}
            wanted = {p: drafter.model is None or p.wants_confidence() for p in policies}
            for step, block in zip(group, blocks, strict=True):
                step.proposal = propose(step.sequence, block, confidence=wanted[step.answer.policy])
        self.scheduler.choose_num_drafts(batch)

    def _verify(self, batch: list[ScheduledStep]) -> None:
        """One target pass over the tokens of all sequences: anchors with their drafts, and chunks
        of prompts. Sequences whose pass was run ahead have their output already.
        """
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
        """Compare drafts with the target's logits by each sequence's acceptance rule.

        On the device: the host waits for the outcomes in `_commit`.
        """
        for step in batch:
            step.apply_rule()
        mx.async_eval(*[step.outcome for step in batch if step.outcome is not None])

    def _run_ahead(self, batch: list[ScheduledStep]) -> None:
        """Start the next decode steps from the sampled tokens, before the host reads them."""
        if any(step.sampled_token is None for step in batch):
            return
        if not all(self.scheduler.may_run_ahead(step.sequence) for step in batch):
            return
        queries = {}
        for step in batch:
            assert step.sampled_token is not None
            queries[step] = step.sequence.rows(step.sampled_token, Draft.none().tokens)
        for group in self._passes_for(queries):
            outputs = self.target.read([queries[step] for step in group])
            self.passes += 1
            self.rows += len(group)
            mx.async_eval([output.logits for output in outputs])
            for step, output in zip(group, outputs, strict=True):
                self._passes_ahead[step.sequence] = output

    def _commit(self, batch: list[ScheduledStep]) -> None:
        """Wait for the outcomes, and append the accepted drafts and the bonus token to each
        sequence. Here a draft becomes a token.
        """
        for step in batch:
            try:
                tokens = step.read_accepted()
                step.commit(tokens)
            except DFlashError as error:
                step.error = error
                self._fail(step.sequence)  # its caches may be the cause

    def _remember(self, batch: list[ScheduledStep]) -> None:
        """Copy chunks of prompts, and answers that have ended, to the prefix cache."""
        for step in batch:
            if step.error is not None:
                continue
            if step.answer.finish_reason:
                self.stop(step.sequence)
            elif step.kind is StepKind.PREFILL:
                self.prefix_cache.keep(step.sequence)

    def begin(self, sequence: Sequence, request: Request, *snapshots_at: int) -> tuple[int, int]:
        """Begin an answer. Returns how many tokens of the prompt are cached, and how many were
        cached but must be read again.

        snapshots_at: the lengths of prefixes that other prompts may share. Raises UsageError for a
        request that the target or the drafter cannot serve.
        """
        target = self.target
        prompt = request.prompt
        room = target.context_length - len(prompt)
        biased = [token for token, _ in request.sampling.logit_bias]
        for what, tokens in (("a prompt token", prompt), ("a token of logit_bias", biased)):
            if min(tokens, default=0) < 0 or max(tokens, default=0) >= target.vocab_size:
                raise UsageError(
                    f"{what} is outside the vocabulary of {target.vocab_size}.",
                    hint="use ids of this target's tokenizer",
                )
        if room < 1:
            raise PromptTooLong(len(prompt), target.context_length)
        rule = make_rule(request.accept, request.sampling, target.vocab_size, target.kernels)
        constraint = None
        if request.structure is not None:
            assert self.compiler is not None
            constraint = self.compiler.constrain(
                request.structure, request.reasoning_prefix, request.stop_ids
            )
        width = self.scheduler.block_size(request)
        idle = not any(other is not sequence for other in self._running)
        policy = self.scheduler.policy_for(request, depth=len(prompt), idle=idle)
        self.stop(sequence)
        kept, lost = sequence.reuse(prompt, drafting=width > 1)
        reuse = self.prefix_cache.extend(sequence, prompt, drafting=width > 1)
        sequence.last_answer = AnswerState(
            request,
            rule,
            policy,
            policy.new_sequence(len(self.drafters)),
            block_size=width,
            remaining=min(request.token_limit, room),
            snapshots_at=tuple(sequence.align(n) for n in (*snapshots_at, reuse.branch)),
            separate_last_token=request.mode == "baseline" or target.kernels.exact,
            constraint=constraint,
        )
        self._running.add(sequence)
        return kept + reuse.taken, max(0, lost - reuse.taken)

    def stop(self, sequence: Sequence, length: int | None = None) -> None:
        """End an answer: drop the pass that was run ahead, and the tokens after `length`.

        If the caches cannot rewind to `length`, all tokens stay until the next prompt. The tokens
        that stay are copied to the prefix cache.
        """
        self._running.discard(sequence)
        if self._passes_ahead.pop(sequence, None) is not None:
            sequence.rewind(len(sequence.tokens))
        kept = len(sequence.tokens) if length is None else length
        if kept < len(sequence.tokens) and sequence.target_cache.can_rewind(kept):
            sequence.rewind(kept)
        self.prefix_cache.keep(sequence, ended=True)

    def work_between_answers(self) -> bool:
        """Do one step of `between_answers`. Returns False if none is left, or an answer runs."""
        if self.between_answers is None or self._running:
            return False
        try:
            next(self.between_answers)
        except StopIteration:
            self.between_answers = None
        except Exception as error:
            log.warning("the work between answers was dropped: %r", error)
            self.between_answers = None
        return self.between_answers is not None

    def finish_work(self) -> None:
        """Do all of `between_answers` now; while an answer runs, nothing."""
        while self.work_between_answers():
            pass

    def change_kernels(self, kernels: Kernels) -> None:
        """Run other kernels from now on, between two answers. Costs of the old ones are dropped."""
        before = self.target.kernels
        self.target.kernels = kernels
        if (kernels.on, kernels.sizes) != (before.on, before.sizes):
            self.scheduler.forget_latencies()

    def _undo(self, sequence: Sequence) -> None:
        """Drop the tokens that were read but not committed, or the whole answer.

        Recurrent layers cannot rewind over two passes: this round's, and one that was run ahead.
        """
        self._passes_ahead.pop(sequence, None)
        if sequence.target_cache.can_rewind(len(sequence.tokens)):
            sequence.rewind(len(sequence.tokens))
        else:
            self._fail(sequence)

    def _fail(self, sequence: Sequence) -> None:
        """End an answer, and drop everything that its sequence has read."""
        self._running.discard(sequence)
        self._passes_ahead.pop(sequence, None)
        sequence.clear()
        sequence.answer.finish_reason = "error"

    def _passes_for(
        self, queries: dict[ScheduledStep, SequenceRows]
    ) -> Iterator[list[ScheduledStep]]:
        """Group the steps by pass: one for all, in exact mode one for up to EXACT_ROWS tokens."""
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
