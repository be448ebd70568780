"""Engines with tiny pairs, and requests that are answered alone and in batches."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny

from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.types import Block

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.3, top_p=0.9, min_p=0.02, seed=4),
    SamplingParams(temperature=1.0, top_k=9, repetition_penalty=1.2, seed=5),
)
MODES: tuple[dict[str, Any], ...] = (
    {"mode": "dflash", "block_size": 5},
    {"mode": "dflash", "block_size": 3},
    {"mode": "ddtree", "tree_budget": 6},
    {"mode": "baseline"},
)
EVERY_MODE: tuple[dict[str, Any], ...] = (
    {"mode": "dflash"},
    {"mode": "ddtree", "tree_budget": 6},
    {"mode": "auto"},
    {"mode": "baseline"},
)
CHUNK = 7  # prompt tokens per pass, so that prefill chunks share passes with verification


@cache
def target_of(family: str) -> Target:
    return tiny.make_target(family)


def request_of(number: int) -> Request:
    return Request(
        prompt=tuple(tiny.prompt_of((4, 23, 9, 38)[number % 4], number)),
        sampling=SAMPLINGS[number // 4 % 4],
        max_tokens=(9, 14, 5, 11)[number // 2 % 4],
        **MODES[number % len(MODES)],
    )


def engine_of(family: str, drafter: DFlashDrafter | None = None) -> Engine:
    target = target_of(family)
    drafter = drafter or tiny.random_drafter(target)
    engine = Engine(target, drafter, compiler=tiny.compiler_of(target))
    engine.scheduler.prompt_chunks.sizes = {0: CHUNK}
    return engine


def alone(engine: Engine, request: Request, sequence: Sequence | None = None) -> list[int]:
    sequence = sequence or Sequence(engine.target, *engine.drafters)
    engine.begin(sequence, request, len(request.prompt) - 1)
    return tiny.joined(list(tiny.rounds(engine, sequence)))


def answer(engine: Engine, prompt: list[int], **options: Any) -> tuple[list[int], int]:
    """A fresh sequence's answer, and how many of the prompt's tokens it did not read."""
    sequence = Sequence(engine.target, *engine.drafters)
    request = Request(tuple(prompt), **{"max_tokens": 9, **options})
    cached = engine.begin(sequence, request, len(prompt) - 1).cached
    said = tiny.joined(list(tiny.rounds(engine, sequence)))
    if engine.prefix_cache.disk is not None:
        engine.prefix_cache.disk.wait()
    return said, cached


def together(engine: Engine, requests: list[Request], dice: random.Random) -> list[list[int]]:
    """Answer requests in batches; sequences start at random rounds and sometimes skip one."""
    waiting, running = list(enumerate(requests)), {}
    said: list[list[int]] = [[] for _ in requests]
    while waiting or running:
        while waiting and (not running or dice.random() < 0.4):
            number, request = waiting.pop(0)
            running[number] = Sequence(engine.target, *engine.drafters)
            engine.begin(running[number], request, len(request.prompt) - 1)
        asked = [number for number in running if dice.random() < 0.9] or list(running)
        dice.shuffle(asked)
        for number, block in zip(asked, engine.step([running[n] for n in asked]), strict=True):
            assert isinstance(block, Block)
            said[number] += block.tokens
            if block.finish_reason:
                del running[number]
    return said


def check_plain(engine: Engine) -> None:
    """Six sequences that join and leave get what each gets alone by plain decoding."""
    requests = [request_of(number) for number in range(6)]
    plain = {"mode": "baseline", "block_size": None, "tree_budget": None}
    wanted = [alone(engine, replace(request, **plain)) for request in requests]
    assert together(engine, requests, random.Random(0)) == wanted


@contextmanager
def recorded_drafts() -> Iterator[list[list[int]]]:
    """The drafts of every verify, while the block runs."""
    seen: list[list[int]] = []
    rows = Sequence.rows

    def recorded(self: Sequence, anchor: mx.array, drafts: mx.array, tree: Any = None) -> Any:
        if drafts.size:
            seen.append(np.array(drafts).tolist())
        return rows(self, anchor, drafts, tree)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sequence, "rows", recorded)
        yield seen
