"""What a caller wants of one answer, checked once."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from dflash_mlx.constrained.grammar import Grammar
from dflash_mlx.errors import UsageError
from dflash_mlx.speculation.acceptance import check_rule
from dflash_mlx.types import SamplingParams

Mode = Literal["auto", "dflash", "ddtree", "baseline"]
MODES: tuple[Mode, ...] = get_args(Mode)
TREE_BUDGET, MAX_TREE_BUDGET = 32, 1024  # drafts of a tree: unless given, and at most
MAX_LOGPROBS = 20  # as in OpenAI's API
MAX_BLOCK_SIZE = 256  # rows of a verify that checks a chain, the anchor's included


@dataclass(frozen=True, slots=True)
class Request:
    """One answer: what it goes on from, and how its tokens are found.

    prompt: token ids, at least one. stop_ids: tokens that end the answer, which is the target's
    own to know. stop: strings that end it, for whoever reads the text (`Session`); the engine knows
    tokens only. max_tokens: at most so many, a stop token included.
    grammar: the form of the text after the thinking. opening: the tokens that the answer goes on
    from, behind the messages, by which it is known whether it is thinking; None is all of `prompt`.
    block_size: the anchor and the drafts of a block; None is the drafter's own. tree_budget: the
    drafts of a tree, in the mode ddtree only; chain_seed puts the greedy chain into it. accept:
    the acceptance rule above temperature 0. logprobs: how many of the likeliest tokens are told
    with each token's log-probability; None tells none at all. Raises UsageError for what does not
    fit.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 512
    stop_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    mode: Mode = "dflash"
    block_size: int | None = None
    tree_budget: int | None = None
    chain_seed: bool = False
    accept: str = "match"
    logprobs: int | None = None
    grammar: Grammar | None = None
    opening: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check everything that needs no model."""
        if not self.prompt:
            raise UsageError("the prompt is empty.", hint="say something")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens cannot be {self.max_tokens}.", hint="give 1 or more")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise UsageError(
                f"logprobs cannot be {self.logprobs}.", hint=f"give 0 to {MAX_LOGPROBS}"
            )
        check_mode(self.mode)
        check_rule(self.accept)
        if self.mode != "ddtree" and (self.tree_budget is not None or self.chain_seed):
            name = "chain_seed" if self.tree_budget is None else "tree_budget"
            raise UsageError(
                f"{name} says nothing to the mode {self.mode}.", hint="use the mode ddtree"
            )
        if self.mode == "ddtree" and self.accept != "match":
            raise UsageError(
                f"the acceptance rule '{self.accept}' judges chains, not trees.",
                hint="leave it at match, or use the mode dflash",
            )
        if self.tree_budget is not None and not 1 <= self.tree_budget <= MAX_TREE_BUDGET:
            raise UsageError(
                f"tree_budget cannot be {self.tree_budget}.",
                hint=f"give a value from 1 to {MAX_TREE_BUDGET}",
            )

    @property
    def going_on_from(self) -> tuple[int, ...]:
        """The tokens behind the messages, by which it is known whether the answer is thinking."""
        return self.prompt if self.opening is None else self.opening

    @property
    def nodes(self) -> int:
        """The drafts of a tree in the mode ddtree."""
        return TREE_BUDGET if self.tree_budget is None else self.tree_budget


def check_mode(mode: str) -> None:
    """UsageError for a mode that there is not."""
    if mode not in MODES:
        raise UsageError(f"there is no mode '{mode}'.", hint=f"use one of {', '.join(MODES)}")
