"""Whole answers of a quantised target whose linear layers run by the kernel."""

from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx import nn

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.models.linear import install
from dflash_mlx.options import Mode
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session

from .emulator import emulated

PROMPT = tiny.prompt_of(12)
TOKENS = 40 if tiny.ALL else 12


def quantised_pair(family: str, bits: int = 4) -> Pair:
    """A random target of packed weights, and a drafter that is right about half of the time."""
    target = tiny.make_target(
        family,
        intermediate_size=64,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    nn.quantize(target.model, 32, bits)
    said = tiny.plain(target, PROMPT, TOKENS + 8, margin=1e-4)
    half = [token if i % 5 else token + 1 for i, token in enumerate(said)]
    drafter = tiny.scripted_drafter([*PROMPT, *half], strict=False)
    return tiny.make_pair(target, drafter, family, "half right")


def answer(pair: Pair, mode: Mode = "dflash") -> list[int]:
    return tiny.joined(list(Session(pair, mode=mode).stream(PROMPT, max_tokens=TOKENS)))


FAMILIES = ["qwen3", "qwen3_5"] if tiny.ALL else ["qwen3"]
MIXTURES = ["qwen3_moe", "qwen3_5_moe", "gpt_oss", "gemma4"] if tiny.ALL else ["qwen3_moe"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bits", [4, 5, 6, 8] if tiny.ALL else [4])
def test_a_generation_of_a_quantised_target(family: str, bits: int) -> None:
    """The same tokens as by MLX, with verifies by the kernel alone."""
    pair = quantised_pair(family, bits)
    wanted = answer(pair)
    with emulated() as emulator:
        install(pair.target.model, Kernels(MetalLauncher()))
        assert answer(pair) == wanted
        names = {record.launch.name for record in emulator.records}
    assert len(names) > 0
    assert all("dflash_small_m_qmm" in name for name in names)
    install(pair.target.model, Kernels())
    assert answer(pair) == wanted


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("family", MIXTURES)
def test_a_generation_of_a_mixture(family: str, exact: bool) -> None:
    """Experts of verifies by their kernel, in exact mode also those of plain steps."""
    pair = quantised_pair(family)
    wanted = answer(pair)
    with emulated() as emulator:
        install(pair.target.model, Kernels(MetalLauncher(), exact=exact))
        assert answer(pair) == wanted
        names = [record.launch.name for record in emulator.records]
        assert any("dflash_grouped_experts" in name for name in names)
        assert any("dflash_small_m_qmm" in name for name in names)
        emulator.records.clear()
        assert answer(pair, "baseline") == wanted
        launches = [record.launch for record in emulator.records]
        steps = [one for one in launches if "grouped" in one.name and one.grid[1] == 2]
        assert bool(steps) == exact  # a row has two experts


def test_exactness_uses_it_for_plain_steps_too() -> None:
    """The same tokens by both ways of decoding; a plain step launches one row."""
    pair = quantised_pair("qwen3")
    wanted = answer(pair)
    with emulated() as emulator:
        install(pair.target.model, Kernels(MetalLauncher(), exact=True))
        assert answer(pair, "baseline") == wanted
        assert emulator.records
        assert answer(pair) == wanted


def test_a_layer_has_the_same_bits_in_plain_steps_and_verifies() -> None:
    """Row by row against all at once, packed and plain, table and head."""
    model: Any = nn.Module()
    model.packed, model.plain = nn.Linear(512, 40), nn.Linear(512, 40)
    model.table = nn.Embedding(33, 512)
    model.packed = nn.QuantizedLinear.from_linear(model.packed, 64, 5)
    x = mx.random.normal((1, 20, 512))

    with emulated():
        install(model, Kernels(MetalLauncher(), exact=True))
        for call in (model.packed, model.plain, model.table.as_linear):
            steps = mx.concatenate([call(x[:, i : i + 1]) for i in range(20)], axis=1)
            assert mx.array_equal(call(x), steps)
