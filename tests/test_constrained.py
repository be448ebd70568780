"""Answers that follow a grammar: those of plain decoding under its masks, in every mode.

Plain decoding is stock mlx-lm with a logits processor (constrained.py); random targets say
something else in every place, so a mask of another place shows.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from constrained import Plain, asked

from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.policy.costs import Costs
from dflash_mlx.request import Mode
from dflash_mlx.sequence import Sequence as TokenSequence
from dflash_mlx.structure.grammar import Grammar
from dflash_mlx.target.target import Target
from dflash_mlx.types import Block, SamplingParams

WAYS: tuple[tuple[Mode, dict[str, Any]], ...] = (
    ("baseline", {}),
    ("dflash", {"block_size": 7}),
    ("ddtree", {"tree_budget": 9}),
    ("ddtree", {"tree_budget": 9, "chain_seed": True}),
    ("auto", {"block_size": 6}),
)
COSTS = Costs(1.0, 0.1, ((1, 1.0), (4, 1.1), (8, 1.3)), read=0.01)
LENGTH = 90
PROMPT = tiny.prompt_of(11, 4)
TEXT = (100, 101)  # an opening whose thinking is closed


@cache
def target_of(family: str) -> Target:
    """One target a family."""
    return tiny.make_target(family)


@pytest.fixture(autouse=True)
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode auto has costs at which drafts pay, whatever this machine does."""
    table = SimpleNamespace(at=lambda depth: COSTS)
    monkeypatch.setattr("dflash_mlx.policies.cost_table", lambda *arguments: table)


def drafter_of(number: int, target: Target, wanted: list[int]) -> Drafter:
    """One that is wrong about every fourth token, or one that was never trained, of each kind."""
    if number % 3 == 0:
        near = [t if n % 4 else (t + 1) % tiny.VOCAB for n, t in enumerate([*PROMPT, *wanted])]
        return tiny.scripted_drafter(near, strict=False)
    settings = tiny.dflash2_settings(target) if number % 3 == 1 else {}
    return tiny.random_drafter(target, **settings)


def answer(
    target: Target, drafter: Drafter, grammar: Grammar, params: SamplingParams, **options: Any
) -> list[Block]:
    """One answer's blocks."""
    options = {"opening": TEXT, "max_tokens": LENGTH, "stops": target.eos_ids, **options}
    sequence = TokenSequence(target, drafter)
    return list(tiny.start(sequence, PROMPT, params, grammar=grammar, **options))


def check(number: int, family: str, params: SamplingParams, ways: Any = WAYS) -> int:
    """Hold a grammar's answers of all modes against plain decoding; how many tokens it has."""
    target, (grammar, follows) = target_of(family), asked(number)
    plain = Plain(target, grammar)
    wanted = plain.answer(PROMPT, LENGTH, params)
    if params.greedy and plain.least < 1e-3:
        return 0  # two tokens are level: which is the likelier hangs on rounding
    whole = len(wanted) < LENGTH
    drafter = drafter_of(number, target, wanted)
    for mode, options in ways:
        blocks = answer(target, drafter, grammar, params, mode=mode, **options)
        assert tiny.joined(blocks) == wanted, (number, mode)
        assert blocks[-1].finish_reason == ("stop" if whole else "length")
    if whole:
        text = target.tokenizer.decode([t for t in wanted if t not in target.eos_ids])
        assert follows(text), text
    return len(wanted) * whole


@pytest.mark.parametrize("family", ["qwen3", "llama_sliding", "qwen3_5"])
def test_greedy_answers(family: str) -> None:
    """The same tokens in all modes, with drafters of all kinds; and they follow the grammar."""
    lengths = [check(number, family, SamplingParams()) for number in range(8)]
    assert sum(length > 0 for length in lengths) >= 4
