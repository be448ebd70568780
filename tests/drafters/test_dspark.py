"""DSpark drafters: the golden reference, PyTorch's logits, exactness, what is kept of a text."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import dspark_cases
import mlx.core as mx
import numpy as np
import pytest
import tiny
from dspark_cases import ACCEPTED, ANCHORS, BY_NAME, LENGTHS, PROPOSALS, Case
from engines import (
    recorded_drafts,
)

from dflash_mlx import api
from dflash_mlx.drafters.chain import ChainBlock
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter, DraftCache
from dflash_mlx.pair import Pair, load
from dflash_mlx.speculation.drafts import DraftBlock, Independent

GOLDEN = tiny.GOLDEN / "dspark_qwen3"
TARGET = tiny.GOLDEN / "qwen3_full" / "target"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
LOGITS = dict(np.load(tiny.GOLDEN / "dspark" / "expected.npz"))
EVERY = 7  # one of so many logits is kept


def golden_pair(**options: Any) -> Pair:
    return load(TARGET, GOLDEN / "draft", **{"cache_ram": 0, **options})


@pytest.fixture(scope="module")
def golden() -> Pair:
    """The authors' own drafter, and the target that it was trained for."""
    return golden_pair()


def check_golden(pair: Pair, prompts: range = range(4)) -> None:
    """Tokens, drafts and the tokens of each verify are the authors'; their last one is not cut.

    Near the end of an answer fewer of the drafts are verified.
    """
    whole = EXPECTED["thresholds"]["0.0"]
    with recorded_drafts() as seen:
        for number in prompts:
            seen.clear()
            limit = EXPECTED["max_new_tokens"]
            prompt = EXPECTED["prompts"][number]
            found = api.generate(pair, prompt, mode="dflash", max_tokens=limit)
            assert found.tokens == EXPECTED["greedy_tokens"][number]
            last = len(whole["committed"][number]) - 1
            assert found.stats.committed[:last] == whole["committed"][number][:last]
            left = limit - 1
            for drafts, wanted, committed in zip(
                seen, whole["drafts"][number][:last], found.stats.committed, strict=False
            ):
                assert drafts == wanted[: min(6, left)]
                left -= committed


def test_drafts_of_the_authors(golden: Pair) -> None:
    """DeepSpec's evaluation loop, which verifies all six drafts; a verify has seven rows."""
    assert golden.block_size == 7
    check_golden(golden)


# PyTorch code from the published equations


@cache
def case_pair(name: str) -> Pair:
    case = BY_NAME[name]
    with tempfile.TemporaryDirectory() as folder:
        draft = case.save(Path(folder))
        return load(tiny.GOLDEN / case.target / "target", draft, cache_ram=0)


def logits_of(block: DraftBlock) -> np.ndarray:
    assert isinstance(block, ChainBlock | Independent)
    if isinstance(block, ChainBlock):
        return np.array(block.chains.greedy[1][:, block.number])
    return np.array(block.logits)


def read(drafter: DFlashDrafter, cache: DraftCache, tokens: list[int]) -> None:
    cache.append(mx.array(dspark_cases.taps_of(cache.offset, tokens))[None], tokens)


def check_case(case: Case, drafter: DFlashDrafter, *, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Drafts and logits of four blocks after each prompt: all, none, two accepted."""
    numbers = iter(range(len(LENGTHS) * len(ANCHORS)))
    for length in LENGTHS:
        cache = drafter.make_cache()
        read(drafter, cache, dspark_cases.prompt_of(length))
        for anchor, kept in zip(ANCHORS, (*ACCEPTED, 0), strict=True):
            number = next(numbers)
            if length not in lengths:
                continue
            block = cache.block(anchor, PROPOSALS + 1)
            drafts = np.array(block.greedy().tokens).tolist()
            assert drafts == LOGITS[f"{case.name} tokens"][number].tolist()
            wanted = LOGITS[f"{case.name} logits"][number]
            np.testing.assert_allclose(logits_of(block)[:, ::EVERY], wanted, atol=2e-4)
            read(drafter, cache, [anchor, *drafts[:kept]])


@pytest.mark.parametrize("case", dspark_cases.CASES, ids=lambda case: case.name)
def test_logits_of_pytorch(case: Case) -> None:
    """Each packaging and each Markov head, after prompts of 1 to 300 tokens."""
    drafter = case_pair(case.name).drafter
    assert isinstance(drafter, DFlashDrafter)
    assert drafter.block_size == PROPOSALS + 1
    check_case(case, drafter)


def test_blocks_that_are_drafted_together() -> None:
    """In one pass: each is what it is alone, whatever stands beside it."""
    for name in ("deepspec_rnn", "speculators", "gemma4"):
        drafter = case_pair(name).drafter
        assert isinstance(drafter, DFlashDrafter)
        caches = [drafter.make_cache() for _ in LENGTHS]
        for held, length in zip(caches, LENGTHS, strict=True):
            read(drafter, held, dspark_cases.prompt_of(length))
        blocks = drafter.draft(caches, ANCHORS, PROPOSALS + 1)
        for block, held, anchor in zip(blocks, caches, ANCHORS, strict=True):
            one = held.block(anchor, PROPOSALS + 1)
            assert block.greedy().tokens.tolist() == one.greedy().tokens.tolist()
            np.testing.assert_allclose(logits_of(block), logits_of(one), atol=1e-4)


# Exactness


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised(bits: int) -> None:
    """A drafter in few bits says the same tokens, and drafts some of them."""
    pair = golden_pair(draft_bits=bits)
    for number in (0, 2):
        prompt = EXPECTED["prompts"][number]
        found = api.generate(pair, prompt, mode="dflash", max_tokens=40)
        assert found.tokens == EXPECTED["greedy_tokens"][number][:40]
        assert found.stats.acceptance_length > 1.3
