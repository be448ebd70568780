"""The engine: many sequences in one round, each with the tokens that it has alone."""

import random
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
import tiny
from engines import CHUNK, MODES, alone, engine_of, request_of, target_of, together

from dflash_mlx.drafters import ngram
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import DFlashError
from dflash_mlx.types import Block


def check(family: str, count: int, seed: int = 0) -> None:
    engine = engine_of(family)
    requests = [request_of(number + seed) for number in range(count)]
    wanted = [alone(engine, request) for request in requests]
    assert together(engine, requests, random.Random(seed)) == wanted


@pytest.mark.parametrize("family", [*tiny.FAMILIES, *tiny.QUANTISED])
def test_answers_do_not_depend_on_company(family: str) -> None:
    """Chains, trees, plain steps and pieces of prompts share passes; sequences join and leave."""
    check(family, 6)


@pytest.mark.quick_every(6)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_copies_of_earlier_text(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a drafter, in chains and trees, alone and in company: what plain steps say."""
    monkeypatch.setattr(ngram, "LEAST", 1)  # random models seldom repeat two tokens
    engine = Engine(target_of(family), ngram.NgramDrafter())
    engine.scheduler.prompt_chunks.sizes = {0: CHUNK}
    copied = 0
    every = tuple(range(engine.target.vocab_size))
    requests = [replace(r, prompt=every + r.prompt) for r in map(request_of, range(6))]
    plain = {"mode": "baseline", "block_size": None, "tree_budget": None}
    wanted = [alone(engine, replace(request, **plain)) for request in requests]
    assert together(engine, requests, random.Random(0)) == wanted
    for request, answer in zip(requests, wanted, strict=True):
        sequence = Sequence(engine.target, *engine.drafters)
        engine.begin(sequence, request, -1)
        blocks = list(tiny.rounds(engine, sequence))
        assert tiny.joined(blocks) == answer
        copied += sum(block.drafted for block in blocks)
    assert copied


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 16])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gemma4", "gpt_oss", "glm_moe_dsa"])
def test_one_to_sixteen_sequences(family: str, count: int) -> None:
    """The same for more of them, in other orders."""
    check(family, count, seed=count)


def test_a_broken_sequence_does_not_break_others() -> None:
    """Logits that are not numbers end one answer; the others of the round go on."""
    engine = engine_of("qwen3")
    requests = [request_of(0), request_of(4)]
    wanted = alone(engine, requests[0])
    fine, broken = (Sequence(engine.target, *engine.drafters) for _ in requests)
    for sequence, request in zip((fine, broken), requests, strict=True):
        engine.begin(sequence, request, -1)
    (first, _) = engine.step([fine, broken])
    for held in broken.target_cache.members:
        held.keys = mx.full(held.keys.shape, mx.nan)
    (second, error) = engine.step([fine, broken])
    assert isinstance(error, DFlashError)
    assert broken.answer.finish_reason == "error"
    blocks = [first, second, *tiny.rounds(engine, fine)]
    assert [
        token for block in blocks if isinstance(block, Block) for token in block.tokens
    ] == wanted


def interrupted(engine: Engine, request: Request, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An answer whose third commit is interrupted, with the next decode step already begun."""
    commit = Engine._commit
    rounds = 0

    def interrupt(self: Engine, batch: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt
        commit(self, batch)

    monkeypatch.setattr(Engine, "_commit", interrupt)
    sequence = Sequence(engine.target, *engine.drafters)
    engine.begin(sequence, request, len(request.prompt) - 1)
    tokens: list[int] = []
    while not sequence.answer.finish_reason:
        try:
            (block,) = engine.step([sequence])
        except KeyboardInterrupt:
            if sequence.answer.finish_reason == "error":  # its layers cannot go back so far
                return [*tokens, *alone(engine, request, sequence)[len(tokens) :]]
            continue
        assert isinstance(block, Block)
        tokens += block.tokens
    assert rounds > 3
    return tokens


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_next"])
def test_an_interrupted_round_leaves_no_trace(
    family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has read, also ahead, is taken back; the answer goes on, or is given anew, alike."""
    engine = engine_of(family)
    request = Request(tuple(tiny.prompt_of(5)), max_tokens=14, **options)
    wanted = alone(engine, request)
    assert interrupted(engine, request, monkeypatch) == wanted
