"""Whole answers with all kernels emulated in place of their references: the same tokens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import exact_rows
import lossless
import mlx.core as mx
import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import Launcher, MetalLauncher
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair, load
from dflash_mlx.policy.policy import FixedPolicy
from dflash_mlx.types import Plan

from .emulator import Emulator, emulated

ATTENTION = {"verify_attention", "verify_attention_combine"}
GREEDY = {"verify_accept_argmax", "verify_accept_prefix"}
PRODUCT = {"small_m_qmm"}
DELTA = {"gated_delta_inputs", "gated_delta_tape", "gated_delta_tree", "gated_delta_replay"}
SIZES: dict[str, Any] = {"head_dim": 64, "linear_key_head_dim": 32, "partial_rotary_factor": 0.25}


@cache
def bundled() -> Pair:
    """The bundled pair, nobody else's."""
    return load()


@contextmanager
def kernels_of(
    target: Target, launcher: Callable[[], Launcher] = MetalLauncher, exact: bool = False
) -> Iterator[Emulator]:
    honest = target.kernels
    with emulated() as emulator:
        target.kernels = Kernels(launcher(), exact=exact)
        try:
            yield emulator
        finally:
            target.kernels = honest


def names(emulator: Emulator) -> set[str]:
    ran = {record.launch.name for record in emulator.records}
    known = sorted(ATTENTION | GREEDY | DELTA | PRODUCT, key=len, reverse=True)
    return {next(kernel for kernel in known if kernel in name) for name in ran}


@pytest.mark.quick_every(3)
@pytest.mark.parametrize(
    ("length", "options"),
    [(40, {}), (16, {"mode": "ddtree", "tree_budget": 15}), (3, {"block_size": 2})],
)
def test_the_bundled_pair(length: int, options: dict[str, Any]) -> None:
    """Chains, trees, and verifies of two rows."""
    pair, prompt = bundled(), "What is 12 plus 7?"
    wanted = api.generate(pair, prompt, max_tokens=length, **options)
    with kernels_of(pair.target) as emulator:
        result = api.generate(pair, prompt, max_tokens=length, **options)
        assert result.tokens == wanted.tokens
        assert result.stats.committed == wanted.stats.committed
        ran = names(emulator)
    assert ran == ATTENTION | PRODUCT | (set() if options.get("mode") == "ddtree" else GREEDY)


@cache
def hybrid() -> tuple[Target, tuple[int, ...]]:
    """A tiny target whose sizes the kernels take, and stock mlx-lm's answer."""
    target = tiny.make_target("qwen3_5", **SIZES)
    return target, tuple(tiny.plain(target, tiny.prompt_of(30), 16))


def answer(plan: Plan, **options: Any) -> set[str]:
    """The hybrid's answer to drafts of which some are wrong; which kernels have run."""
    target, wanted = hybrid()
    prompt = tiny.prompt_of(30)
    drafter = lossless.hinted_drafter([*prompt, *wanted])
    with kernels_of(target, **options) as emulator:
        blocks = tiny.speculate(
            target, drafter, prompt, block_size=8, max_tokens=16, policy=FixedPolicy(plan)
        )
        assert tiny.joined(blocks) == list(wanted)
        assert plan.rows == 1 or min(len(block.tokens) for block in blocks[1:]) < plan.rows
        return names(emulator)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("plan", "kernels"),
    [
        (Plan(6), GREEDY | DELTA - {"gated_delta_tree"}),
        (Plan(13, tree=True), DELTA - {"gated_delta_tape"}),
        (Plan(1), set()),
    ],
)
def test_a_hybrid(plan: Plan, kernels: set[str], exact: bool) -> None:
    """Chains with rejections and trees; plain steps are the kernels' only where they are exact."""
    ran = answer(plan, exact=exact)
    if plan.rows > 1 or exact:
        steps = {"gated_delta_inputs", "gated_delta_tape"} if exact else set()
        wanted = ATTENTION | PRODUCT | kernels | steps
        assert ran == wanted
    else:
        assert ran == ATTENTION  # of the prompt


def test_exact_recurrence_is_of_one_kind() -> None:
    """With the replay's kernel off, all three are references: their bits are others."""
    target, _ = hybrid()
    prompt = tiny.prompt_of(30)
    with emulated() as emulator:
        target.kernels = Kernels(MetalLauncher(), {"gated_delta_replay": "slow"}, exact=True)
        target.forward(mx.array([prompt]), target.make_cache())
        others = ATTENTION | PRODUCT | {"gated_delta_inputs"}
        assert names(emulator) == others
        target.kernels = Kernels(MetalLauncher(), {"gated_delta_replay": "slow"})
        target.forward(mx.array([prompt]), target.make_cache())
        assert names(emulator) == others | {"gated_delta_tape"}
    target.kernels = Kernels()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_5", SIZES),
        ("llama_sliding", {"head_dim": 64}),
        ("gemma4_unified", {"head_dim": 64, "global_head_dim": 80}),
    ],
)
def test_a_rows_bits_are_those_of_plain_steps(family: str, changes: dict[str, Any]) -> None:
    """In bfloat16 with exact kernels: chains, trees, and steps after a part of either was kept."""
    target = exact_rows.target_of(family, Kernels(), **changes)
    with kernels_of(target, exact=True):
        exact_rows.check(target, 13, 5 if tiny.ALL else 3, after=1)
