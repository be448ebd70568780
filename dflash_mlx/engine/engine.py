"""The engine: one round of many sequences, as in the DFlash paper (arXiv 2602.06036, section 3).

    plan -> draft -> verify -> accept -> commit

Tokens in, blocks out. Nothing computes outside these five but the next pass of plain steps, which
`step` says when to begin. Does not know text or templates, nor how a policy decides. All of it runs
in the one thread that owns MLX (worker_thread.py).
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from time import perf_counter
from weakref import WeakKeyDictionary

import mlx.core as mx

from dflash_mlx.drafters.base import DraftSource
from dflash_mlx.drafters.ngram import Lookup
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.policy.policy import Outcome, Policy
from dflash_mlx.speculation.acceptance import make_rule
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.types import Block, Plan

from .prefix_cache.prefix_cache import PrefixCache
from .request import Request
from .round import (
    Committed,
    Drafted,
    allowed,
    commit,
    copies,
    count_rows,
    drafted_of,
    may_run_ahead,
    rows_of,
    text_of,
    undrafted,
)
from .scheduler import Pace, Policies
from .sequence import Answer, Piece, Sequence

PLAIN_STEP = Plan(1)
CHUNK = 2048  # tokens of a prompt a pass, as in mlx-lm

Plans = dict[Sequence, Piece | Plan]
Drafts = dict[Sequence, Piece | Draft]
Passes = dict[Sequence, SequencePass]
Arrays = dict[Sequence, mx.array]
Chosen = dict[Sequence, Plan]  # of those that drafted
Results = dict[Sequence, Committed | DFlashError]


class Engine:
    """Answers for many sequences of one target at once; what it learns of them stays with it."""

    def __init__(self, target: Target, drafter: DraftSource | None, *, lookup: bool = False):
        """With `lookup` drafts may be copied from earlier text, also without a drafter."""
        self.target, self.drafter, self.lookup = target, drafter, lookup
        self.policies = Policies(target, drafter, lookup=lookup)
        self.prefixes = PrefixCache()
        self.chunk = CHUNK
        self._pace = Pace()
        self.passes = self.rows = 0  # of the target so far
        self._passes_ahead: WeakKeyDictionary[Sequence, SequencePass] = WeakKeyDictionary()

    def step(self, sequences: Many[Sequence]) -> list[Block | DFlashError]:
        """One round: what each sequence commits, or why it cannot go on.

        A sequence whose prompt is not read to its end commits an empty block. Whatever is raised,
        what was not committed is undone.
        """
        began = perf_counter()
        try:
            plans = self._plan(sequences)
            drafts, chosen = self._draft(plans)
            passes = self._verify(drafts)
            choices, outcomes = self._accept(drafts, passes)
            self._run_steps_ahead(drafts, choices)
            found = self._commit(drafts, passes, outcomes)
            self._learn(found, drafts, chosen, perf_counter() - began)
        except BaseException:
            for sequence in sequences:
                self._passes_ahead.pop(sequence, None)
                sequence.rewind(len(sequence.tokens))
            raise
        return [one.block if isinstance(one, Committed) else one for one in found.values()]

    def _plan(self, sequences: Many[Sequence]) -> Plans:
        """Each sequence reads a piece of its prompt, drafts a block, or takes a plain step."""
        reading = sum(1 for s in sequences if s.unread)
        shared = self.chunk if reading == len(sequences) else min(self.chunk, self._pace.tokens)
        chunk = -(-shared // max(reading, 1))
        plans: Plans = {
            sequence: sequence.next_piece(chunk) if sequence.unread else PLAIN_STEP
            for sequence in sequences
        }
        for sequence in self._drafting(sequences):
            plans[sequence] = Plan(sequence.now.block_size)
        return plans

    def _draft(self, plans: Plans) -> tuple[Drafts, Chosen]:
        """One drafter pass for all blocks, or copies; the policies choose how much is verified."""
        drafting = [s for s, plan in plans.items() if isinstance(plan, Plan) and plan.rows > 1]
        blocks, chosen = self._begin_drafts(drafting), Chosen()
        drafts: Drafts = {s: undrafted(s, plan) for s, plan in plans.items()}
        for policy, group in by_policy(drafting):
            texts = [text_of(s) for s in group]
            confidences = [blocks[s].read_confidence() for s in group]
            others = sum(count_rows(draft) for s, draft in drafts.items() if s not in group)
            for s, plan in zip(group, policy.choose(texts, confidences, others), strict=True):
                chosen[s], drafts[s] = plan, blocks[s].cut(plan, room=s.now.left)
        return drafts, chosen

    def _verify(self, drafts: Drafts) -> Passes:
        """One target pass over the rows of all: each anchor with its drafts, pieces of prompts."""
        passes = {s: self._passes_ahead.pop(s) for s in drafts if s in self._passes_ahead}
        parts = {s: rows_of(s, draft) for s, draft in drafts.items() if s not in passes}
        for group in self._passes_for(parts):
            found = self.target.read([parts[s] for s in group], at_once=True)
            passes.update(zip(group, found, strict=True))
            self.passes += 1
            self.rows += sum(parts[s].tokens.size for s in group)
        return passes

    def _accept(self, drafts: Drafts, passes: Passes) -> tuple[Arrays, Arrays]:
        """What the target chooses after its plain rows, and each sequence's outcome; not read."""
        choices, outcomes = Arrays(), Arrays()
        for s, draft in drafts.items():
            rule, place, logits = s.now.rule, s.now.place, allowed(s, draft, passes[s].logits)
            if isinstance(draft, Piece):
                if draft.last:
                    history = [*s.tokens, *draft.tokens]
                    choices[s], outcomes[s] = rule.step(logits, history, place)
            elif draft.drafted:
                outcomes[s] = rule.outcome(draft, logits, s.history, place)
            else:
                choices[s], outcomes[s] = rule.step(logits, s.history, place)
        mx.async_eval(*outcomes.values())
        return choices, outcomes

    def _run_steps_ahead(self, drafts: Drafts, choices: Arrays) -> None:
        """Begin the next pass of plain steps before anybody has read the tokens it goes on from."""
        if len(choices) < len(drafts) or not all(may_run_ahead(s) for s in choices):
            return
        parts = {s: s.rows(choice, Draft.none().tokens) for s, choice in choices.items()}
        for group in self._passes_for(parts):
            found = self.target.read([parts[s] for s in group])
            self.passes += 1
            self.rows += len(group)
            mx.async_eval([part.logits for part in found])
            self._passes_ahead.update(zip(group, found, strict=True))

    def _commit(self, drafts: Drafts, passes: Passes, outcomes: Arrays) -> Results:
        """Read the outcomes: accepted drafts and the bonus token become part of each sequence."""
        found = Results()
        for s, draft in drafts.items():
            try:
                found[s] = commit(s, draft, passes[s], outcomes.get(s))
            except DFlashError as error:
                found[s] = error
                self._passes_ahead.pop(s, None)
                s.clear()  # what it has read may be the cause
                continue
            if s.now.finish_reason:
                self.stop(s)
            elif isinstance(draft, Piece):
                self.prefixes.keep(s)
        return found

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
        constraint = target.compiler.constrain(
            request.grammar, request.going_on_from, request.stop_ids
        )
        width = self.policies.block_size(request)
        policy = self.policies.of(request, depth=max(len(prompt), len(sequence.tokens)))
        self.stop(sequence)
        kept, lost = sequence.reuse(prompt, drafting=width > 1)
        reuse = self.prefixes.extend(sequence, prompt, drafting=width > 1)
        sequence.answer = Answer(
            request,
            rule,
            policy,
            policy.new_belief(),
            policy.new_belief(copied=True),
            block_size=width,
            left=min(request.max_tokens, room),
            snapshots_at=tuple(sequence.align(n) for n in (*snapshots_at, reuse.branch)),
            last_alone=request.mode == "baseline" or target.kernels.exact,
            constraint=constraint,
            lookup=Lookup() if self.lookup and width > 1 else None,
        )
        return kept + reuse.taken, max(0, lost - reuse.taken)

    def stop(self, sequence: Sequence, length: int | None = None) -> None:
        """Drop what was run ahead for a sequence, and tokens behind `length`; it may go on later.

        Where the caches cannot go back to `length`, its tokens stay until the next prompt. What
        stays may serve other prompts.
        """
        if self._passes_ahead.pop(sequence, None) is not None:
            sequence.rewind(len(sequence.tokens))
        shown = len(sequence.tokens) if length is None else length
        if shown < len(sequence.tokens) and sequence.target_cache.can_rewind(shown):
            sequence.rewind(shown)
        self.prefixes.keep(sequence, ended=True)

    def _drafting(self, sequences: Many[Sequence]) -> list[Sequence]:
        """The sequences that draft or copy a block in this round."""
        asked = [s for s in sequences if not s.unread and s.now.block_size > 1]
        asked = [s for s in asked if s not in self._passes_ahead]
        found: list[Sequence] = []
        for policy, group in by_policy(asked):
            self.policies.refresh(policy, max(len(s.tokens) for s in group))
            for s in group:
                s.now.copying = copies(s)
            found += [s for s in group if s.now.copying]
            others = [s for s in group if not s.now.copying and self.drafter is not None]
            wishes = policy.drafts([text_of(s) for s in others], len(sequences) - len(others))
            found += [s for s, wish in zip(others, wishes, strict=True) if wish]
        return found

    def _begin_drafts(self, sequences: Many[Sequence]) -> dict[Sequence, Drafted]:
        """Begin blocks after the anchors of these sequences: copies, and one pass of the drafter.

        Blocks of another width have a pass of their own.
        """
        found: dict[Sequence, Drafted] = {}
        for s in sequences:
            if s.now.lookup is not None and s.now.copying:
                found[s] = drafted_of(s, s.now.lookup.block(s.now.block_size), reads=True)
        others = [s for s in sequences if s not in found]
        for width in sorted({s.now.block_size for s in others}):
            group = [s for s in others if s.now.block_size == width]
            assert self.drafter is not None
            caches = [s.draft_cache for s in group if s.draft_cache is not None]
            blocks = self.drafter.draft(caches, [s.anchor for s in group], width)
            reads = {policy: policy.reads(len(some)) for policy, some in by_policy(group)}
            for s, block in zip(group, blocks, strict=True):
                found[s] = drafted_of(s, block, reads=reads[s.now.policy])
        return found

    def _passes_for(self, parts: dict[Sequence, SequenceRows]) -> Iterator[list[Sequence]]:
        """Who shares a pass: all; with exactness at most as many rows as that is known for."""
        if not parts:
            return
        group: list[Sequence] = []
        rows = 0
        for s, part in parts.items():
            rows += part.tokens.size
            if group and self.target.kernels.exact and rows > EXACT_ROWS:
                yield group
                group, rows = [], part.tokens.size
            group.append(s)
        yield group

    def _learn(self, found: Results, drafts: Drafts, chosen: Chosen, seconds: float) -> None:
        """Tell the policies what came of the round; its time, where it was theirs alone."""
        read = sum(len(draft.tokens) for draft in drafts.values() if isinstance(draft, Piece))
        if any(isinstance(draft, Draft) for draft in drafts.values()):
            self._pace.learn(read, seconds)
        for policy, group in by_policy([s for s in found if isinstance(drafts[s], Draft)]):
            done = [
                Outcome(
                    text_of(s).belief,
                    chosen.get(s, PLAIN_STEP),
                    verified=draft.drafted,
                    accepted=result.accepted,
                    committed=len(result.block.tokens),
                    drafted=s in chosen and not s.now.copying,
                    judged=draft.judged,
                )
                for s in group
                if isinstance(result := found[s], Committed)
                and isinstance(draft := drafts[s], Draft)
            ]
            policy.learn(done, seconds if len(done) == len(found) else None)


def by_policy(sequences: Many[Sequence]) -> list[tuple[Policy, list[Sequence]]]:
    """Sequences with their policies, each of which decides for all of theirs at once."""
    groups: dict[Policy, list[Sequence]] = {}
    for s in sequences:
        groups.setdefault(s.now.policy, []).append(s)
    return list(groups.items())
