"""One conversation with a pair: prompts in, readable blocks out, nothing read twice.

Knows templates, text and what was read before; does not know the terminal, and keeps no messages.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, get_args
from weakref import ref

from mlx_lm.generate import wired_limit

from .baseline import decode_plain
from .chat.template import TemplateOptions
from .chat.text import Reader
from .context import Context, Progress
from .decode import decode
from .errors import UsageError
from .kernels.dispatch import EXACT_ROWS
from .pair import Pair
from .policy.plans import MOST_ROWS, Mode, fixed_policy
from .policy.policy import Policy, PolicyState
from .speculation.acceptance import make_rule
from .stats import Stats
from .timing.adaptive import Adaptive
from .types import Block, SamplingParams

Prompt = str | list[dict[str, Any]] | list[int]


def silent(done: int, total: int) -> None:
    """Progress that nobody looks at."""


class Session:
    """Answers prompts one after another; a prompt that goes on from the last is not read again.

    `mode` may be set between answers, to another one with a drafter.
    """

    def __init__(self, pair: Pair, *, mode: Mode = "dflash"):
        if mode not in get_args(Mode):
            names = ", ".join(get_args(Mode))
            raise UsageError(f"there is no mode '{mode}'.", hint=f"use one of {names}")
        if mode != "baseline" and pair.drafter is None:
            raise UsageError(
                "this pair was loaded without a drafter.", hint="use the mode baseline (--no-draft)"
            )
        self.pair = pair
        self.mode: Mode = mode
        self.context = Context(pair.target, None if mode == "baseline" else pair.drafter)
        self.stats = Stats()
        self._policies: dict[tuple[int, bool], Adaptive] = {}
        self._deciding: Policy | None = None
        self._asked = 0  # tokens of the newest prompt

    @property
    def policy(self) -> PolicyState | None:
        """What was chosen for the rounds of the last answer, and why; None before one."""
        return None if self._deciding is None else self._deciding.state

    @property
    def snapshot_bytes(self) -> int:
        """Memory of the places in the conversation that the caches can go back to.

        They are kept where layers are recurrent or slide; registry.py has their limits.
        """
        return self.context.target_cache.snapshot_bytes

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int = 512,
        block_size: int | None = None,
        accept: str = "match",
        tree_budget: int | None = None,
        chain_seed: bool = False,
        stop: Sequence[str] = (),
        think: bool | None = None,
        reasoning_effort: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        raw: bool = False,
        on_prefill: Progress = silent,
    ) -> Generator[Block]:
        """Answer a prompt: a string (one user message; plain text if `raw`), messages, or ids.

        `block_size` (anchor included) defaults to the drafter's own; `accept` names the acceptance
        rule above temperature 0. In the mode ddtree a verify has a tree of `tree_budget` drafts (32
        if not given, at most 1024), with the greedy chain in it if `chain_seed`.
        `on_prefill(done, total)` counts the prompt tokens that are read now. Closing the iterator
        keeps the caches right. Raises UsageError for bad arguments and DFlashError for what goes
        wrong later.

        `think` and `reasoning_effort` ("low", "medium", "high") are switches of the chat template;
        one that it does not know is refused. `tools` are JSON schemas of functions, written where
        the template has a place for them. Messages pass as they are: the role "tool", `tool_calls`,
        and whatever else the template reads. A call that the answer makes is text of the answer.
        """
        sampling = sampling or SamplingParams()
        target = self.pair.target
        width = self._width(block_size)
        options = TemplateOptions(think, reasoning_effort, tools or None)
        ids = self._ids(prompt, options, raw)
        room = target.context_length - len(ids)
        if max_tokens < 1:
            raise UsageError(f"max_tokens cannot be {max_tokens}.", hint="give 1 or more")
        if not ids:
            raise UsageError("the prompt is empty.", hint="say something")
        if min(ids) < 0 or max(ids) >= target.vocab_size:
            raise UsageError(
                f"a prompt token is outside the vocabulary of {target.vocab_size}.",
                hint="use ids of this target's tokenizer",
            )
        if room < 1:
            raise UsageError(
                f"the prompt has {len(ids):,} tokens, the context holds {target.context_length:,}.",
                hint="shorten the prompt",
            )
        rule = make_rule(accept, sampling, target.vocab_size, target.kernels)
        self._asked = len(ids)
        policy = self._policy(width, tree_budget, chain_seed, accept)
        limit, stops = min(max_tokens, room), target.eos_ids
        cached, lost = self.context.reuse(ids)
        turn, opening = self._turn(prompt, ids, options, raw)
        if not cached:
            policy.begin()
        self._deciding = policy
        self.stats = stats = Stats(prompt_tokens=len(ids), cached_tokens=cached, lost_tokens=lost)

        def blocks() -> Generator[Block]:
            if self.mode == "baseline" and not self._exact:
                return decode_plain(
                    self.context,
                    ids,
                    sampling,
                    max_tokens=limit,
                    stops=stops,
                    progress=on_prefill,
                    turn=turn,
                )
            # Exact plain steps read the prompt as drafted rounds do, and are rounds of one row.
            logits = self.context.read(ids[cached:], on_prefill, turn=turn - cached)
            return decode(
                self.context,
                logits,
                rule,
                block_size=width,
                max_tokens=limit,
                stops=stops,
                policy=policy,
            )

        return self._readable(blocks, Reader(target.tokenizer, opening, stop), stats)

    def _readable(
        self, blocks: Callable[[], Generator[Block]], reader: Reader, stats: Stats
    ) -> Generator[Block]:
        """Count the blocks and give them their text."""
        eos = self.pair.target.eos_ids
        with wired_limit(self.pair.target.model):
            source = blocks()
            try:
                for block in source:
                    stats.record(block)
                    piece = reader.read([t for t in block.tokens if t not in eos])
                    text, thinking, reason = piece.text, piece.thinking, block.finish_reason
                    if piece.stopped:
                        reason = "stop"
                    elif reason:
                        last = reader.finish()
                        text, thinking = text + last.text, thinking + last.thinking
                        reason = "stop" if last.stopped else reason
                    yield replace(block, text=text, thinking=thinking, finish_reason=reason)
                    if reason:
                        return
                    if self.stats is not stats:
                        raise UsageError(
                            "this session has begun another answer.",
                            hint="use one session for each conversation",
                        )
            finally:
                source.close()
                ahead = self.context.target_cache.offset > len(self.context.tokens)
                if ahead and self.stats is stats:
                    self.context.reuse([*self.context.tokens, 0])

    def _turn(
        self, prompt: Prompt, ids: list[int], options: TemplateOptions, raw: bool
    ) -> tuple[int, list[int]]:
        """How many of a prompt's tokens the next one will surely begin with, and the opening.

        The opening is what the answer goes on from, after the messages; it is not among the tokens
        counted: a template may write past answers otherwise. Of a prompt that is no chat it is all.
        """
        last, target = len(ids) - 1, self.pair.target
        messages = as_messages(prompt, raw)
        if messages is None:
            return last, ids
        closed, text = (target.template.write(messages, options, opening=o) for o in (False, True))
        opening = target.encode(text[len(closed) :]) if text.startswith(closed) else ids
        if not self.context.target_cache.needs_snapshots:
            return last, opening
        before = target.encode(closed)
        return next((n for n in range(last) if before[n : n + 1] != ids[n : n + 1]), last), opening

    @property
    def _exact(self) -> bool:
        return self.pair.target.kernels.exact

    @property
    def _most_rows(self) -> int:
        return EXACT_ROWS if self._exact else MOST_ROWS

    def _width(self, block_size: int | None) -> int:
        drafter = self.pair.drafter
        if drafter is None or self.mode == "baseline":
            return 1
        if block_size is None:
            return min(drafter.config.block_size, self._most_rows)
        if not 2 <= block_size <= self._most_rows:
            raise UsageError(
                f"block_size cannot be {block_size}{' in exact mode' * self._exact}.",
                hint=f"give 2 to {self._most_rows}, or use the mode baseline (--no-draft)",
            )
        return block_size

    def _policy(self, width: int, budget: int | None, chain_seed: bool, accept: str) -> Policy:
        """What decides about every round; in the mode auto it goes on from answer to answer."""
        if budget is not None and self._exact and budget >= EXACT_ROWS:
            raise UsageError(
                f"tree_budget cannot be {budget} in exact mode.",
                hint=f"give a value from 1 to {EXACT_ROWS - 1}",
            )
        fixed = fixed_policy(self.mode, width, budget, chain_seed, accept)
        if fixed is not None:
            return fixed
        kind = (width, accept == "match")
        if kind not in self._policies:
            session = ref(self)  # or its caches would stay in memory longer than itself

            def depth() -> int:
                """Tokens read, or about to be: costs are measured before the prompt is read."""
                asking = session()
                assert asking is not None
                return max(asking._asked, len(asking.context.tokens))

            self._policies[kind] = Adaptive(self.pair, width, depth, trees=kind[1])
        return self._policies[kind]

    def tokens(
        self,
        prompt: Prompt,
        *,
        think: bool | None = None,
        reasoning_effort: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        raw: bool = False,
    ) -> list[int]:
        """The token ids of a prompt; they depend on nothing that was said before.

        So an answer is what a fresh session would give. What was read is used again as far as its
        ids are the same, also where a tokenizer would have written the last answer otherwise.
        """
        return self._ids(prompt, TemplateOptions(think, reasoning_effort, tools or None), raw)

    def _ids(self, prompt: Prompt, options: TemplateOptions, raw: bool) -> list[int]:
        if isinstance(prompt, str) and not prompt.strip():
            raise UsageError("the prompt is empty.", hint="say something")
        target, messages = self.pair.target, as_messages(prompt, raw)
        if messages is not None:
            return target.chat_tokens(messages, options)
        if options != TemplateOptions():
            raise UsageError(
                "thinking, effort and tools are told by a chat template, and this is no chat.",
                hint="leave them out, or send messages (without --raw)",
            )
        if isinstance(prompt, str):
            return target.tokenizer.encode(prompt)
        return [int(token) for token in prompt]  # type: ignore[arg-type]


def as_messages(prompt: Prompt, raw: bool) -> list[dict[str, Any]] | None:
    """A prompt as messages; None for raw text and for token ids."""
    if isinstance(prompt, str):
        return None if raw else [{"role": "user", "content": prompt}]
    return prompt if prompt and isinstance(prompt[0], dict) else None  # type: ignore[return-value]
