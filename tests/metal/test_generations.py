"""Whole answers with kernels emulated in place of their references: the same tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import exact_rows
import lossless
import mlx.core as mx
import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.policy.policy import FixedPolicy
from dflash_mlx.speculation.acceptance import make_rule
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.types import Plan

from .emulator import Emulator, emulated

ATTENTION = {"verify_attention", "verify_attention_combine"}
GREEDY = {"verify_accept_argmax", "verify_accept_prefix"}
SAMPLED = {"verify_accept_sample_sums", "verify_accept_sample_draw"}
WALK = {"selector_walk"}
ACCEPTING = frozenset({"verify_accept", "verify_accept_sample", "selector_walk"})
PRODUCT = {"small_m_qmm"}
DELTA = {"gated_delta_inputs", "gated_delta_tape", "gated_delta_tree", "gated_delta_replay"}
SIZES: dict[str, Any] = {"head_dim": 64, "linear_key_head_dim": 32, "partial_rotary_factor": 0.25}


@cache
def bundled() -> Pair:
    """The bundled pair, nobody else's."""
    return load()


@contextmanager
def kernels_of(
    target: Target, exact: bool = False, on: frozenset[str] | None = None
) -> Iterator[Emulator]:
    """Within it the target runs kernels, all or those of the operations `on`."""
    honest = target.kernels
    with emulated() as emulator:
        target.kernels = Kernels(MetalLauncher(), exact=exact, on=on)
        try:
            yield emulator
        finally:
            target.kernels = honest


def names(emulator: Emulator) -> set[str]:
    ran = {record.launch.name for record in emulator.records}
    known = sorted(ATTENTION | GREEDY | SAMPLED | WALK | DELTA | PRODUCT, key=len, reverse=True)
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


@cache
def pair_of(name: str) -> Pair:
    """A golden pair, or the pair of twelve tokens; nobody else's."""
    if name.startswith("sampling"):
        draft = name.replace("sampling", "draft")
        return load(tiny.GOLDEN / "sampling" / "target", tiny.GOLDEN / "sampling" / draft)
    return tiny.golden_pair(name)


@pytest.mark.quick_every(2)
@pytest.mark.parametrize(
    ("name", "kernels"), [("qwen3_full", GREEDY), ("qwen3_dflash2", GREEDY | WALK)]
)
def test_golden_answers(name: str, kernels: set[str]) -> None:
    """The authors' own tokens and tokens per verify, DFlash and DFlash 2."""
    pair, expected = pair_of(name), tiny.expected(name)
    prompts = expected["prompts"] if tiny.ALL else expected["prompts"][:1]
    for number, prompt in enumerate(prompts):
        with kernels_of(pair.target, on=ACCEPTING) as emulator:
            result = api.generate(pair, prompt, max_tokens=expected["max_new_tokens"])
            assert names(emulator) == kernels
        assert result.tokens == expected["greedy_tokens"][number]
        assert result.stats.committed == expected["acceptance_lengths"][number]


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("name", ["sampling", "sampling_dflash2"])
@pytest.mark.parametrize("accept", ["token", "block"])
def test_sampled_answers(name: str, accept: str) -> None:
    """The same random bits give the same answers, from a full q and from that of candidates."""
    pair, prompt = pair_of(name), [1, 5, 6, 0]
    ran: set[str] = set()
    for seed in range(20 if tiny.ALL else 4):
        params = SamplingParams(temperature=1.3, top_p=0.95, presence_penalty=0.4, seed=seed)
        options: dict[str, Any] = {"sampling": params, "accept": accept, "max_tokens": 16}
        wanted = api.generate(pair, prompt, **options)
        with kernels_of(pair.target, on=ACCEPTING) as emulator:
            result = api.generate(pair, prompt, **options)
            ran |= names(emulator)
        assert result.tokens == wanted.tokens
        assert result.stats.committed == wanted.stats.committed
    assert ran == SAMPLED


def test_damaged_logits_are_refused() -> None:
    """A NaN reaches the user as an error, by the kernel's flag."""
    logits = mx.zeros((3, 12))
    logits[2, 7] = mx.nan
    draft = Draft(mx.array([0, 0]), mx.full((2, 12), 1 / 12))
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_p=0.9)):
        with emulated():
            rule = make_rule("token", params, 12, Kernels(MetalLauncher()))
            with pytest.raises(DFlashError, match="not numbers"):
                rule.accept(draft, rule.outcome(draft, logits, [], 0))
