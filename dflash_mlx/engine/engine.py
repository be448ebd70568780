"""The engine: one round of many sequences, as in the DFlash paper (arXiv 2602.06036, section 3).

    schedule -> propose -> verify -> accept -> run ahead -> commit -> remember

`Engine.step` runs one round. A round has one `ScheduledStep` for each sequence, which these verbs
fill in; nothing is computed outside them. A draft becomes a token in `Engine._commit`. Everything
runs in the one thread that owns MLX (worker_thread.py).
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from weakref import WeakKeyDictionary, WeakSet

import mlx.core as mx

from dflash_mlx.constrained.compiler import Compiler
from dflash_mlx.drafters.base import Drafter
from dflash_mlx.errors import (
    DFlashError,
    GPUFault,
    KernelFailed,
    PromptTooLong,
    first_line,
)
from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels, item_bytes
from dflash_mlx.models.cache.sizes import cache_bytes, free_bytes, snapshot_bytes
from dflash_mlx.models.memory import WiredMemory, share_under_pressure
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.policy.policy import Choice
from dflash_mlx.speculation.acceptance import make_rule
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.token_rules import TokenRules
from dflash_mlx.types import Block

from .faults import clear_faults, gpu_fault
from .prefix_cache.prefix_cache import PrefixCache
from .request import Request
from .round import ScheduledStep, StepKind
from .scheduler import Scheduler
from .sequence import AnswerState, Sequence

# Tokens that a sequence may have however little memory there is: a question and its answer.
LEAST_CONTEXT = 1024
MAX_RETRIES = 1  # rounds in a row that may fail without a committed token

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PromptReuse:
    """How much of a prompt is cached, in tokens; `lost` and `differs_at` are as in `Stats`."""

    cached: int
    lost: int
    differs_at: int | None


class Engine:
    """Generates answers for many sequences of one target at once.

    passes, rows: how many passes of the target were run so far, and how many tokens they read.
    faults: how often the GPU or a kernel has failed. on_kernel_failed: called with the operation of
    a kernel that failed, and the reason. between_answers: work that is done step by step while no
    answer is generated; None if there is none.
    """

    def __init__(self, target: Target, *drafters: Drafter | None, compiler: Compiler | None = None):
        """Modes other than auto use the first of the `drafters` that can draft; None is ignored.

        `compiler` compiles the grammars of requests; only those requests need it.
        """
        self.target = target
        self.drafters = tuple(drafter for drafter in drafters if drafter is not None)
        target.share_kernels([d.model for d in self.drafters if d.model is not None])
        self.compiler = compiler
        self.scheduler = Scheduler(target, self.drafters)
        self.prefix_cache = PrefixCache()
        self.passes = 0
        self.rows = 0
        self.faults = 0
        self.on_kernel_failed: Callable[[str, str], None] = lambda name, reason: None
        self.memory_limit: int | None = None  # for the caches of a sequence; None: no limit
        self._fitting_tokens: int | None = None  # whose caches take no more than that
        self._wired = WiredMemory()
        self.between_answers: Iterator[None] | None = None
        self._passes_ahead: WeakKeyDictionary[Sequence, SequencePass] = WeakKeyDictionary()
        self._running: WeakSet[Sequence] = WeakSet()

    def step(self, sequences: Many[Sequence]) -> list[Block | DFlashError]:
        """Run one round: the block that each sequence commits, or the error that ends its answer.

        The block is empty while the sequence's prompt is being read. After a fault of the GPU or of
        a kernel it is empty too, and the next rounds read the tokens again; see `_recover`. After
        any other exception, everything that the round has not committed is undone; see `_undo`.
        """
        began = perf_counter()
        batch: list[ScheduledStep] = []
        for sequence in sequences:
            self._renew(sequence)
        try:
            batch = self.scheduler.schedule(sequences, ahead=self._passes_ahead)
            self._propose(batch)
            self._verify(batch)
            self._accept(batch)
            self._run_ahead(batch)
            self._commit(batch)
            self._remember(batch)
            self.scheduler.update(batch, perf_counter() - began, ahead=self._passes_ahead)
        except BaseException as error:
            fault = gpu_fault(error) or self._replace_kernels(error)
            if fault is None:
                for sequence in sequences:
                    self._undo(sequence)
                raise
            self._recover(batch, fault)
        return [step.result for step in batch]

    def _propose(self, batch: list[ScheduledStep]) -> None:
        """Draft the blocks, in one pass for each drafter and width; then choose how many drafts
        of each are verified.
        """
        groups: dict[Choice, list[ScheduledStep]] = {}
        for step in batch:
            step.draft_forced_tokens()
            if step.choice is not None:
                groups.setdefault(step.choice, []).append(step)
        for choice in sorted(groups):
            group = groups[choice]
            number, width = choice
            drafter = self.drafters[number]
            caches = [step.sequence.draft_caches[number] for step in group]
            anchors = [step.sequence.anchor for step in group]
            draws = [step.next_draw() for step in group]
            blocks = drafter.draft(caches, anchors, width, draws)
            for step, block, draw in zip(group, blocks, draws, strict=True):
                step.propose(block, draw)
        self.scheduler.choose_num_drafts(batch)

    def _verify(self, batch: list[ScheduledStep]) -> None:
        """One target pass over the tokens of all sequences: anchors with their drafts, and chunks
        of prompts. Sequences whose pass was run ahead have their output already.
        """
        for step in batch:
            step.output = self._passes_ahead.pop(step.sequence, None)
            step.was_ahead = step.output is not None
        queries = {step: step.query() for step in batch if step.output is None}
        for step, output in self._read(queries, at_once=True):
            step.output = output

    def _accept(self, batch: list[ScheduledStep]) -> None:
        """Compare drafts with the target's logits by each sequence's acceptance rule.

        On the device: the host waits for the outcomes in `_commit`.
        """
        for step in batch:
            step.apply_rule()
        mx.async_eval(*[step.outcome for step in batch if step.outcome is not None])

    def _run_ahead(self, batch: list[ScheduledStep]) -> None:
        """Start the next decode steps from the sampled tokens, before the host reads them."""
        sampled = {step: step.sampled_token for step in batch if step.sampled_token is not None}
        if len(sampled) < len(batch):
            return
        if not all(self.scheduler.may_run_ahead(step.sequence) for step in batch):
            return
        none = Draft.none().tokens
        queries = {step: step.sequence.rows(token, none) for step, token in sampled.items()}
        for step, output in self._read(queries):
            self._passes_ahead[step.sequence] = output
        mx.async_eval([self._passes_ahead[step.sequence].logits for step in batch])

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

    def begin(self, sequence: Sequence, request: Request, *snapshots_at: int) -> PromptReuse:
        """Begin an answer. Returns how much of its prompt is cached.

        snapshots_at: the lengths of prefixes that other prompts may share. Raises UsageError for a
        request that the target or the drafter cannot serve.
        """
        target = self.target
        prompt = request.prompt
        request.check_vocabulary(target.vocab_size)
        room = self.context_length - len(prompt)
        if room < 1:
            memory = self.context_length < target.context_length
            raise PromptTooLong(len(prompt), self.context_length, memory=memory)
        if target.kernels.stepwise and not self._running:
            target.kernels = target.kernels.without()
        width = self.scheduler.block_size(request)
        name = request.rule_with(self.drafters[0].accept if width > 1 else "match")
        rule = make_rule(
            name, request.sampling, target.vocab_size, target.kernels, request.kept_ids
        )
        token_rules = TokenRules(
            request.allowed_token_ids,
            banned=target.eos_ids if request.ignore_eos else frozenset(),
            late=request.stop_ids,
            min_tokens=request.min_tokens,
            words=request.bad_word_ids,
        )
        constraint = None
        if request.structure is not None:
            assert self.compiler is not None
            constraint = self.compiler.constrain(
                request.structure, request.reasoning_prefix, request.stop_ids
            )
        self._renew(sequence)
        with self._dropping_caches():
            policy = self.scheduler.policy_for(request, width)
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
            to_read=prompt,
            constraint=constraint,
            token_rules=token_rules or None,
        )
        self._running.add(sequence)
        tokens = len(prompt) + sequence.answer.remaining
        self._wired.hold(mx.get_active_memory() + self.sequence_bytes(tokens))
        cached = kept + reuse.taken
        lost = max(lost - reuse.taken, reuse.branch - cached, 0)
        return PromptReuse(cached, lost, reuse.differs_at)

    def stop(self, sequence: Sequence, length: int | None = None) -> None:
        """End an answer: drop the pass that was run ahead, and the tokens after `length`.

        If the caches cannot rewind to `length`, all tokens stay until the next prompt. The tokens
        that stay are copied to the prefix cache. A fault of the GPU costs them, not the answer.
        """
        self._running.discard(sequence)
        self._renew(sequence)
        try:
            with self._dropping_caches():
                if self._passes_ahead.pop(sequence, None) is not None:
                    sequence.rewind(len(sequence.tokens))
                kept = len(sequence.tokens) if length is None else length
                if kept < len(sequence.tokens) and sequence.target_cache.can_rewind(kept):
                    sequence.rewind(kept)
                self.prefix_cache.keep(sequence, ended=True)
        except GPUFault as fault:
            if sequence.last_answer is not None:
                reason = fault.message.rstrip(".")
                sequence.answer.notes.append(f"{reason}: the next prompt is read from its start")
        self._give_memory_back()

    def sequence_bytes(self, tokens: int) -> int:
        size = item_bytes()
        sizes = self.target.caches
        caches = cache_bytes(sizes, tokens, size, self.target.kv_bits)
        caches += free_bytes(sizes, size)
        rows = sum(drafter.row_bytes(size) for drafter in self.drafters)
        return caches + snapshot_bytes(sizes, size) + tokens * rows

    @property
    def context_length(self) -> int:
        """Tokens of a sequence at most: the target's context, or fewer if memory holds fewer."""
        most = self.target.context_length
        return most if self._fitting_tokens is None else min(most, self._fitting_tokens)

    def fit_context(self, nbytes: int | None = None) -> None:
        """Limit sequences to the tokens whose caches fit into `nbytes`, or into those given before.

        While macOS is short of memory they may be shorter, and the prefix cache is emptied.
        """
        self.memory_limit = self.memory_limit if nbytes is None else nbytes
        if self.memory_limit is None:
            return
        share = share_under_pressure()
        if share < 1:
            self.prefix_cache.clear()
            mx.clear_cache()
        lengths = range(self.target.context_length + 1)
        fitting = bisect_right(lengths, share * self.memory_limit, key=self.sequence_bytes) - 1
        self._fitting_tokens = max(fitting, LEAST_CONTEXT)

    def _give_memory_back(self) -> None:
        """While no answer runs, wire no memory, and look at how much there is."""
        if not self._running:
            self._wired.release()
            self.fit_context()

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
        """Run other kernels from the next pass on. Costs measured with the old ones are dropped."""
        before = self.target.kernels
        self.target.kernels = kernels
        if (kernels.on, kernels.sizes) != (before.on, before.sizes):
            self.scheduler.forget_costs()

    def _undo(self, sequence: Sequence) -> None:
        """Drop the tokens that were read but not committed, or the whole answer.

        Recurrent layers cannot rewind over two passes: this round's, and one that was run ahead.
        """
        self._passes_ahead.pop(sequence, None)
        if sequence.target_cache.can_rewind(len(sequence.tokens)):
            sequence.rewind(len(sequence.tokens))
        else:
            self._fail(sequence)

    def _recover(self, batch: list[ScheduledStep], fault: GPUFault | KernelFailed) -> None:
        """After a fault, let each sequence read its tokens again, in smaller pieces.

        A sequence gets the error if its GPU fails in the next round too, or if a kernel fails in
        exact mode, where what replaces it gives other bits.
        """
        self._drop_caches()
        for step in batch:
            answer = step.answer
            self._renew(step.sequence)
            if step.error is not None:
                continue
            if step.block is not None:  # committed before the fault
                if not answer.finish_reason:
                    answer.notes.append(fault.note)
                continue
            if isinstance(fault, GPUFault):
                answer.failed_rounds += 1
                retries = answer.failed_rounds <= MAX_RETRIES
            else:
                retries = not self.target.kernels.exact
            if retries:
                answer.notes.append(fault.note)
                step.block = Block(())
            else:
                step.error = fault
                self._fail(step.sequence)

    def _replace_kernels(self, error: BaseException) -> KernelFailed | None:
        """Let stock MLX replace a kernel that raised an error; None for another error.

        If several may have raised it, each runs by itself until the next answer, to find it.
        """
        kernels = self.target.kernels
        suspects = kernels.find_failure(error)
        if not suspects:
            return None
        found = len(suspects) == 1 or kernels.stepwise
        cause = first_line(error.__cause__ or error)
        failed = KernelFailed(suspects, cause, replaced=found)
        if found:
            reason = f"raised {cause} in an answer"
            self.change_kernels(kernels.without(suspects, reason))
            for name in suspects:
                self.on_kernel_failed(name, reason)
        else:
            self.target.kernels = kernels.by_steps()
        return failed

    def _drop_caches(self) -> None:
        """Free what can be computed again. Any cache may hold rows that were never computed."""
        self.faults += 1
        clear_faults()
        self._passes_ahead.clear()
        self.prefix_cache.clear()
        mx.clear_cache()

    def _renew(self, sequence: Sequence) -> None:
        """Drop a sequence's caches if they are older than the last fault."""
        if sequence.faults_seen != self.faults:
            sequence.faults_seen = self.faults
            sequence.read_again()
            if sequence.last_answer is not None:
                sequence.answer.rule.kernels = self.target.kernels

    @contextmanager
    def _dropping_caches(self) -> Iterator[None]:
        """Drop the caches if the GPU fails in this context; the fault is raised."""
        try:
            yield
        except Exception as error:
            fault = gpu_fault(error)
            if fault is None:
                raise
            self._drop_caches()
            raise fault from error

    def _fail(self, sequence: Sequence) -> None:
        """End an answer, and drop everything that its sequence has read."""
        self._running.discard(sequence)
        self._passes_ahead.pop(sequence, None)
        sequence.clear()
        sequence.answer.finish_reason = "error"
        self._give_memory_back()

    def _read(
        self, queries: dict[ScheduledStep, SequenceRows], *, at_once: bool = False
    ) -> Iterator[tuple[ScheduledStep, SequencePass]]:
        """Run the steps' passes: one for all, in exact mode one for up to EXACT_ROWS tokens."""
        waiting = list(queries)
        while waiting:
            ends = accumulate(queries[step].tokens.size for step in waiting)
            fits = len(waiting)
            if self.target.kernels.exact:
                fits = max(1, sum(end <= EXACT_ROWS for end in ends))
            group = waiting[:fits]
            del waiting[:fits]
            outputs = self.target.read([queries[step] for step in group], at_once=at_once)
            self.passes += 1
            self.rows += sum(queries[step].tokens.size for step in group)
            yield from zip(group, outputs, strict=True)
