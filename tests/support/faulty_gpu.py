"""A GPU that fails in the middle of rounds, as MLX reports it."""

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.engine import faults
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.sequence import Sequence

NO_MEMORY = (
    "[METAL] Command buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
)
TIMEOUT = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)
VERBS = ("_propose", "_verify", "_accept", "_run_ahead", "_commit", "_remember")


class FaultyGPU:
    """Fails random verbs of an engine's rounds, and then no cache can be trusted.

    A sequence commits a token between two faults. `count`: faults so far; `harmless`: those after
    the last round of all answers of a batch. MLX holds up to two more errors after each, which the
    next verb would raise.
    """

    def __init__(self, engine: Engine, dice: random.Random, patch: pytest.MonkeyPatch):
        self.engine = engine
        self.dice = dice
        self.count = 0
        self.harmless = 0
        self.verb: str | None = None
        self.late = False
        self.held_errors = 0
        for verb in VERBS:
            patch.setattr(engine, verb, self._failing(verb, getattr(engine, verb)))
        step = engine.step

        def counted(sequences: Any) -> Any:
            calm = all(sequence.answer.failed_rounds == 0 for sequence in sequences)
            self.verb = dice.choice(VERBS) if calm and dice.random() < 0.3 else None
            self.late = dice.random() < 0.5
            return step(sequences)

        def synchronize(*_: Any) -> None:
            if self.held_errors:
                self.held_errors -= 1
                raise RuntimeError(NO_MEMORY)

        patch.setattr(engine, "step", counted)
        patch.setattr(faults.mx, "synchronize", synchronize)

    def _failing(self, verb: str, run: Callable[..., None]) -> Callable[..., None]:
        def failing(batch: Any) -> None:
            if self.held_errors:
                self.held_errors -= 1
                raise RuntimeError(NO_MEMORY)
            fails = self.verb == verb
            if fails:
                self.verb = None
            if not fails or self.late:
                run(batch)
            if fails:
                self.count += 1
                self.harmless += all(step.answer.finish_reason for step in batch)
                self.held_errors = self.dice.randrange(3)
                for sequence in {step.sequence for step in batch}:
                    spoil(sequence)
                raise RuntimeError(self.dice.choice((NO_MEMORY, TIMEOUT)))

        return failing


def spoil(sequence: Sequence) -> None:
    """Overwrite all arrays of a sequence's caches, as if they had never been computed."""
    for cache in (sequence.target_cache, *sequence.draft_caches):
        spoil_arrays(cache, set())


def spoil_arrays(thing: Any, seen: set[int]) -> None:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, mx.array):
        if mx.issubdtype(thing.dtype, mx.floating) and thing.size:
            thing[...] = 7.0
        return
    parts: Any = ()
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, list | tuple):
        parts = thing
    elif type(thing).__module__.startswith(("mlx_lm.models.cache", "dflash_mlx")):
        parts = vars(thing).values() if hasattr(thing, "__dict__") else ()
    for part in parts:
        spoil_arrays(part, seen)
