"""The functions most scripts need: `stream` and `generate`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .arguments import check_names
from .pair import Pair
from .request import Mode
from .session import Progress, Prompt, Session, silent
from .stats import Stats
from .structure.grammar import Grammar
from .types import Block, SamplingParams


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer: its tokens (a stop token included), its text, and its numbers."""

    tokens: list[int]
    text: str
    thinking: str
    finish_reason: str
    stats: Stats


@check_names
def stream(
    pair: Pair,
    prompt: Prompt,
    *,
    sampling: SamplingParams | None = None,
    max_tokens: int = 512,
    mode: Mode = "dflash",
    block_size: int | None = None,
    accept: str = "match",
    tree_budget: int | None = None,
    chain_seed: bool = False,
    stop: Sequence[str] = (),
    think: bool | None = None,
    reasoning_effort: str | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
    schema: dict[str, Any] | str | None = None,
    grammar: Grammar | str | None = None,
    raw: bool = False,
    on_prefill: Progress = silent,
) -> Iterator[Block]:
    """Answer one prompt block by block; the arguments are those of `Session.stream`."""
    return Session(pair, mode=mode).stream(
        prompt,
        sampling=sampling,
        max_tokens=max_tokens,
        block_size=block_size,
        accept=accept,
        tree_budget=tree_budget,
        chain_seed=chain_seed,
        stop=stop,
        think=think,
        reasoning_effort=reasoning_effort,
        tools=tools,
        schema=schema,
        grammar=grammar,
        raw=raw,
        on_prefill=on_prefill,
    )


@check_names
def generate(
    pair: Pair,
    prompt: Prompt,
    *,
    sampling: SamplingParams | None = None,
    max_tokens: int = 512,
    mode: Mode = "dflash",
    block_size: int | None = None,
    accept: str = "match",
    tree_budget: int | None = None,
    chain_seed: bool = False,
    stop: Sequence[str] = (),
    think: bool | None = None,
    reasoning_effort: str | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
    schema: dict[str, Any] | str | None = None,
    grammar: Grammar | str | None = None,
    raw: bool = False,
    on_prefill: Progress = silent,
) -> Result:
    """Answer one prompt and return when the answer is whole; arguments as `Session.stream`."""
    session = Session(pair, mode=mode)
    blocks = list(
        session.stream(
            prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            block_size=block_size,
            accept=accept,
            tree_budget=tree_budget,
            chain_seed=chain_seed,
            stop=stop,
            think=think,
            reasoning_effort=reasoning_effort,
            tools=tools,
            schema=schema,
            grammar=grammar,
            raw=raw,
            on_prefill=on_prefill,
        )
    )
    return Result(
        tokens=[token for block in blocks for token in block.tokens],
        text="".join(block.text for block in blocks),
        thinking="".join(block.thinking for block in blocks),
        finish_reason=blocks[-1].finish_reason or "length",
        stats=session.stats,
    )
