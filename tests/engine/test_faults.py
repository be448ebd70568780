"""Faults of the GPU: what MLX raises, planted in any verb of a round, costs no token."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tiny
from engines import MODES, alone, engine_of, request_of, together
from faulty_gpu import NO_MEMORY, TIMEOUT, FaultyGPU, spoil

from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.faults import gpu_fault
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import GPUFault, KernelFailed
from dflash_mlx.kernels import verify_accept
from dflash_mlx.kernels.dispatch import Kernels, LaunchFailed
from dflash_mlx.kernels.source import StepwiseLauncher
from dflash_mlx.types import Block


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError(NO_MEMORY), "too little memory"),
        (RuntimeError("[malloc] Unable to allocate 123 bytes."), "too little memory"),
        (RuntimeError("[metal::malloc] Resource limit (499000) exceeded."), "too little memory"),
        (MemoryError(), "too little memory"),
        (RuntimeError(TIMEOUT), "gave up"),
        (RuntimeError("[matmul] Last dimension of first input must match."), None),
        (ValueError("[METAL] is not raised as a ValueError"), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_what_a_fault_is(error: BaseException, words: str | None) -> None:
    """Faults of the machine become a sentence with a hint; errors of a program stay as they are."""
    fault = gpu_fault(error)
    if words is None:
        assert fault is None
    else:
        assert fault is not None
        assert words in fault.message
        assert fault.hint
        assert gpu_fault(fault) is fault


def check(family: str, seed: int, patch: pytest.MonkeyPatch) -> int:
    requests = [request_of(number + seed) for number in range(6)]
    wanted = [alone(engine_of(family), request) for request in requests]
    engine = engine_of(family)
    dice = random.Random(seed)
    gpu = FaultyGPU(engine, dice, patch)
    assert together(engine, requests, dice) == wanted
    assert engine.faults == gpu.count
    return gpu.count


@pytest.mark.quick_every(6)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_faults_cost_no_token(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains, trees and plain steps, alone and in company, greedy and seeded."""
    assert sum(check(family, seed, monkeypatch) for seed in range(2)) > 3


@pytest.mark.parametrize("options", MODES)
def test_a_second_fault_ends_the_answer(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sentence of the fault; the tokens before it stand, and the next answer is right."""
    engine = engine_of("qwen3_5")
    request = Request(tuple(tiny.prompt_of(5)), max_tokens=14, **options)
    wanted = alone(engine, request)
    sequence = Sequence(engine.target, *engine.drafters)
    engine.begin(sequence, request, -1)
    said: list[int] = []
    while len(said) < 4:
        (block,) = engine.step([sequence])
        assert isinstance(block, Block)
        said += block.tokens

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_accept", raising(RuntimeError(NO_MEMORY)))
        (empty,) = engine.step([sequence])
        assert empty == Block(())
        (error,) = engine.step([sequence])
    assert isinstance(error, GPUFault)
    assert sequence.answer.finish_reason == "error"
    assert said == wanted[: len(said)]
    assert alone(engine, request, sequence) == wanted


def test_idle_sequences_and_cached_prefixes_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault in one answer: what other sequences and the prefix cache hold is not used again."""
    engine = engine_of("qwen3")
    engine.prefix_cache.limit = 1 << 30
    first = request_of(3)
    wanted = alone(engine, first)
    idle = Sequence(engine.target, *engine.drafters)
    assert alone(engine, first, idle) == wanted
    spoil(idle)
    gpu = FaultyGPU(engine, random.Random(1), monkeypatch)
    while not gpu.count:
        alone(engine, request_of(0))
    assert alone(engine, first, idle) == wanted
    assert alone(engine, first) == wanted


def test_a_fault_after_an_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs what would be cached, not the answer; the next answer is right."""
    engine = engine_of("qwen3")
    request = request_of(1)
    wanted = alone(engine, request)
    sequence = Sequence(engine.target, *engine.drafters)

    def fails_at_the_end(sequence: Sequence, *, ended: bool = False) -> None:
        if ended and sequence.tokens:
            raise RuntimeError(NO_MEMORY)

    with monkeypatch.context() as patch:
        patch.setattr(engine.prefix_cache, "keep", fails_at_the_end)
        assert alone(engine, request, sequence) == wanted
    assert "the next prompt is read from its start" in sequence.answer.notes[-1]
    assert alone(engine, request, sequence) == wanted


# Kernels that raise

LARGE = "Thread group size (512) is greater than the maximum (448)."
KERNELS = frozenset({"verify_accept", "verify_attention"})


def with_kernels(engine: Engine, patch: pytest.MonkeyPatch, fails: Callable[[], bool]) -> list[Any]:
    """Give an engine two kernels, one of which raises; returns the failures that it tells.

    Both compute their references. `verify_accept` raises at once if its launch is evaluated at
    once; else a pass of the target raises, as where MLX evaluates it later.
    """
    told: list[Any] = []

    def run(launcher: Any, *args: Any) -> Any:
        if fails() and isinstance(launcher, StepwiseLauncher):
            raise ValueError(LARGE)
        return right.reference(*args)

    right = verify_accept.OP
    patch.setattr(verify_accept, "OP", replace(right, launch=run))
    verify = engine._verify

    def verifying(batch: Any) -> None:
        kernels = engine.target.kernels
        if fails() and kernels.enables(right) and not kernels.stepwise:
            raise ValueError(LARGE)
        verify(batch)

    patch.setattr(engine, "_verify", verifying)
    patch.setattr(engine, "on_kernel_failed", lambda *failure: told.append(failure))
    launcher: Any = object()
    engine.target.kernels = Kernels(launcher, on=frozenset({"verify_accept", "selector_walk"}))
    return told


def test_a_kernel_that_raises_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's message does not name it: it is found, and stock MLX goes on with the same tokens."""
    engine = engine_of("qwen3")
    request = Request(tuple(tiny.prompt_of(5)), max_tokens=14, mode="dflash", block_size=5)
    wanted = alone(engine, request)
    sequence = Sequence(engine.target, *engine.drafters)
    try:
        told = with_kernels(
            engine,
            monkeypatch,
            lambda: sequence.last_answer is not None and sequence.answer.position > 3,
        )
        assert alone(engine, request, sequence) == wanted
        assert told == [("verify_accept", f"raised {LARGE.rstrip('.')} in an answer")]
        kernels = engine.target.kernels
        assert not kernels.stepwise
        assert (kernels.on, kernels.wrong) == ({"selector_walk"}, {"verify_accept"})
        first, last = sequence.answer.notes
        assert "selector_walk or verify_accept" in first
        assert "to find it" in first
        assert "stock MLX replaces it" in last
        assert alone(engine, request) == wanted
    finally:
        engine.target.kernels = Kernels()


def test_which_kernels_may_have_raised() -> None:
    """The one that MLX names, or all that may run; none for another error or without kernels."""
    launcher: Any = object()
    kernels = Kernels(launcher, on=KERNELS)
    refused = RuntimeError("[metal::Device] Unable to load kernel dflash_verify_attention_combine")
    assert kernels.find_failure(refused) == {"verify_attention"}
    assert kernels.find_failure(RuntimeError("[metal::Device] Unable to build")) == KERNELS
    assert not kernels.find_failure(RuntimeError("[matmul] no"))
    assert not Kernels().find_failure(refused)
    stepwise = kernels.by_steps()
    assert stepwise.find_failure(refused) == {"verify_attention"}
    assert not stepwise.find_failure(RuntimeError("[metal::Device] Unable to load kernel gemm"))


def test_an_exact_answer_ends_with_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What replaces it has other bits, so the answer has to begin anew."""
    engine = engine_of("qwen3")
    request = Request(tuple(tiny.prompt_of(5)), max_tokens=14, mode="dflash", block_size=5)
    sequence = Sequence(engine.target, *engine.drafters)
    try:
        engine.target.kernels = Kernels(exact=True)
        engine.begin(sequence, request, -1)
        engine.step([sequence])
        monkeypatch.setattr(engine, "_accept", raising(LaunchFailed("verify_accept")))
        (error,) = engine.step([sequence])
    finally:
        engine.target.kernels = Kernels()
    assert isinstance(error, KernelFailed)


def raising(error: Exception) -> Callable[[Any], None]:
    def run(batch: Any) -> None:
        raise error

    return run
