"""Which acceptance rule answers have that name none, and the law of those in shared passes."""

from collections import Counter
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from sampling_law import EOS, LIMIT, golden, golden_law, golden_settings, surprise

from dflash_mlx.drafters.chain import ChainBlock
from dflash_mlx.drafters.small_model import SmallModelDrafter
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.options import SamplingParams
from dflash_mlx.speculation.acceptance import RULES
from dflash_mlx.types import Block

HOT = SamplingParams(temperature=1.0)
RULE_OF: list[tuple[str, dict[str, Any], str]] = [
    ("model", {"sampling": HOT}, SmallModelDrafter.accept),
    ("model", {"sampling": replace(HOT, seed=1)}, "match"),
    ("model", {"sampling": replace(HOT, xtc_probability=0.5)}, "match"),
    ("model", {"sampling": HOT, "mode": "ddtree"}, "match"),
    ("model", {"sampling": HOT, "mode": "baseline"}, "match"),
    ("model", {"sampling": SamplingParams()}, "match"),
    ("model", {"sampling": replace(HOT, seed=1), "accept": "token"}, "token"),
    ("model", {"sampling": HOT, "accept": "match"}, "match"),
    ("dflash", {"sampling": HOT}, "match"),
    ("eagle3", {"sampling": HOT}, "match"),
]


@pytest.mark.parametrize(("drafter", "options", "rule"), RULE_OF)
def test_the_rule_of_an_answer(drafter: str, options: dict[str, Any], rule: str) -> None:
    """The drafter's own, unless a seed, a tree or XTC needs `match`, or the request names one."""
    pair = golden(drafter)
    engine = Engine(pair.target, pair.drafter)
    sequence = Sequence(pair.target, pair.drafter)
    engine.begin(sequence, Request((1, 5, 6), **options))
    assert type(sequence.answer.rule) is RULES[rule]


def packed_surprise(count: int) -> float:
    """How far unseeded answers are from their law: two in each pass, of blocks of two drafts."""
    prompt, params, _ = golden_settings()[0]
    law = golden_law(tuple(prompt), params)
    pair = golden("model")
    engine = Engine(pair.target, pair.drafter)
    sequences = [Sequence(pair.target, pair.drafter) for _ in range(2)]
    request = Request(
        tuple(prompt), sampling=params, max_tokens=3, block_size=3, stop_ids=frozenset({EOS})
    )
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(count):
        said = {sequence: list[int]() for sequence in sequences}
        for sequence in sequences:
            engine.begin(sequence, request)
        while running := [one for one in sequences if not one.answer.finish_reason]:
            for sequence, block in zip(running, engine.step(running), strict=True):
                assert isinstance(block, Block)
                said[sequence] += block.tokens
        counts.update(tuple(tokens) for tokens in said.values())
    assert set(counts) <= set(law)
    return surprise(np.array([counts[key] for key in law]), np.array([*law.values()]))


def test_law_of_unseeded_answers_in_shared_passes() -> None:
    assert packed_surprise(400) < LIMIT


def test_another_q_in_shared_passes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: q of other drafts than those that were drawn."""
    honest = ChainBlock.sample

    def level(self: ChainBlock, draw: Any) -> Any:
        draft = honest(self, draw)
        assert draft.probabilities is not None
        width = draft.probabilities.shape[-1]
        return replace(draft, probabilities=mx.full(draft.probabilities.shape, 1 / width))

    monkeypatch.setattr(ChainBlock, "sample", level)
    assert packed_surprise(400) > LIMIT
