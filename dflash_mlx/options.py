"""What may be asked of an answer, by name: the keywords of `Session.prepare`, for those who pass
them on. What they mean, and what they are without being given, stands there.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

from .structure.grammar import Grammar
from .types import SamplingParams


class AnswerOptions(TypedDict, total=False):
    """The keywords of `Session.prepare`."""

    sampling: SamplingParams | None
    max_tokens: int
    block_size: int | None
    accept: str
    tree_budget: int | None
    chain_seed: bool
    stop: Sequence[str]
    logprobs: int | None
    think: bool | None
    reasoning_effort: str | None
    tools: Sequence[dict[str, Any]] | None
    schema: dict[str, Any] | str | None
    grammar: Grammar | str | None
    raw: bool
