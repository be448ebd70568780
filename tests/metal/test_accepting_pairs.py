"""Whole answers with the accepting and selecting kernels in place of their references."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import Launcher, MetalLauncher
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.speculation.acceptance import make_rule
from dflash_mlx.speculation.drafts import Draft

from .emulator import emulated

GREEDY = {"dflash_verify_accept_argmax", "dflash_verify_accept_prefix"}
SAMPLED = {"dflash_verify_accept_sample_sums", "dflash_verify_accept_sample_draw"}
WALK = {"dflash_selector_walk"}
OPERATIONS = frozenset({"verify_accept", "verify_accept_sample", "selector_walk"})


@cache
def pair_of(name: str) -> Pair:
    """A golden pair, or the pair of twelve tokens; nobody else's."""
    if name.startswith("sampling"):
        draft = name.replace("sampling", "draft")
        return load(tiny.GOLDEN / "sampling" / "target", tiny.GOLDEN / "sampling" / draft)
    return tiny.golden_pair(name)


@contextmanager
def kernels_of(
    pair: Pair, launcher: Callable[[], Launcher] = MetalLauncher
) -> Iterator[Callable[[], set[str]]]:
    """Within it the pair runs kernels; gives the names of those that have run."""
    honest = pair.target.kernels
    with emulated() as emulator:
        pair.target.kernels = Kernels(launcher(), on=OPERATIONS)
        try:
            yield lambda: {
                next(name for name in (*GREEDY, *SAMPLED, *WALK) if name in record.launch.name)
                for record in emulator.records
            }
        finally:
            pair.target.kernels = honest


def compared(pair: Pair, prompt: Any, **options: Any) -> set[str]:
    wanted = api.generate(pair, prompt, **options)
    with kernels_of(pair) as ran:
        result = api.generate(pair, prompt, **options)
        assert result.tokens == wanted.tokens
        assert result.stats.committed == wanted.stats.committed
        return ran()


@pytest.mark.quick_every(2)
@pytest.mark.parametrize(
    ("name", "kernels"), [("qwen3_full", GREEDY), ("qwen3_dflash2", GREEDY | WALK)]
)
def test_golden_answers(name: str, kernels: set[str]) -> None:
    """The authors' own tokens and tokens per verify, DFlash and DFlash 2."""
    pair, expected = pair_of(name), tiny.expected(name)
    prompts = expected["prompts"] if tiny.ALL else expected["prompts"][:1]
    for number, prompt in enumerate(prompts):
        with kernels_of(pair) as ran:
            result = api.generate(pair, prompt, max_tokens=expected["max_new_tokens"])
            assert ran() == kernels
        assert result.tokens == expected["greedy_tokens"][number]
        assert result.stats.committed == expected["acceptance_lengths"][number]


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("name", ["sampling", "sampling_dflash2"])
@pytest.mark.parametrize("accept", ["token", "block"])
def test_sampled_answers(name: str, accept: str) -> None:
    """The same random bits give the same answers, from a full q and from that of candidates."""
    ran: set[str] = set()
    for seed in range(20 if tiny.ALL else 4):
        params = SamplingParams(temperature=1.3, top_p=0.95, presence_penalty=0.4, seed=seed)
        options = {"sampling": params, "accept": accept, "max_tokens": 16}
        ran |= compared(pair_of(name), [1, 5, 6, 0], **options)
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
