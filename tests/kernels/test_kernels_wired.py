"""The engine with this package's operations in place of MLX's and mlx-lm's own functions."""

from collections import Counter
from functools import cache
from typing import Any

import exact_rows
import lossless
import mlx.core as mx
import pytest
import tiny
from lossless import LENGTH, LONG, SHORT, stock
from mlx_lm.models.cache import QuantizedKVCache

from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import Kernels, Op
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.models import attention
from dflash_mlx.models.cache import recurrent as recurrent_cache
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.parts import flat
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.tree import Tree

LATENT = ("deepseek_v3", "glm_moe_dsa", "kimi_k25")
RECURRENT = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


class Noted(Kernels):
    def __init__(self, **options: Any):
        super().__init__(**options)
        object.__setattr__(self, "ran", Counter())

    ran: Counter[str]

    def __call__(self, op: Op, *args: Any) -> Any:
        self.ran[op.name] += 1
        return super().__call__(op, *args)

    def attempt(self, op: Op, *args: Any) -> Any | None:
        out = super().attempt(op, *args)
        self.ran[op.name] += out is not None
        return out


@cache
def target_of(family: str) -> Target:
    """One target a family, which nobody else uses."""
    return tiny.make_target(family)


def drafter_of(kind: str, family: str, prompt: list[int]) -> Any:
    text = [*prompt, *stock(family, tuple(prompt))]
    if kind == "random":
        return tiny.random_drafter(target_of(family))
    if kind == "hinted":
        return lossless.hinted_drafter(text)
    return tiny.scripted_drafter(text, wrong=kind == "wrong")


def answer(
    family: str, kind: str, prompt: list[int], rows: int, tree: bool, **switches: bool
) -> Counter[str]:
    """Hold one answer against stock mlx-lm's; which operations have run how often."""
    wanted, drafter = stock(family, tuple(prompt)), drafter_of(kind, family, prompt)
    target = target_of(family)
    target.kernels = noted = Noted(**(switches or {"references": True}))
    blocks = tiny.speculate(
        target,
        drafter,
        prompt,
        block_size=8 if tree else rows,
        max_tokens=LENGTH,
        **({"mode": "ddtree", "tree_budget": rows - 1} if tree else {}),
    )
    target.kernels = Kernels()
    assert tiny.joined(blocks) == wanted
    return noted.ran


CASES = [("random", 7, False), ("right", 16, False), ("hinted", 17, True), ("wrong", 6, True)]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_answers(family: str) -> None:
    """Chains and trees, in contexts shorter than the window, and longer."""
    for number, (kind, rows, tree) in enumerate(CASES):
        for prompt in (SHORT, LONG) if tiny.ALL else ((SHORT, LONG)[number % 2],):
            ran = answer(family, kind, prompt, rows, tree)
            assert (ran["verify_attention"] > 0) == (family not in LATENT)
            if family in RECURRENT:
                verifies = ran["gated_delta_tree" if tree else "gated_delta_tape"]
                assert ran["gated_delta_inputs"] >= verifies > 0
                assert ran["gated_delta_replay"] > 0 or kind == "right"


@pytest.mark.parametrize("family", ["llama_sliding", "qwen3_next"])
def test_budgets_over_a_word(family: str) -> None:
    """A tree of 70 rows, which no kernel takes, is left to the references where they stand in."""
    assert answer(family, "hinted", LONG, 70, True)["verify_attention"] > 0


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name not in LATENT])
def test_every_layer_goes_through_the_kernels(family: str) -> None:
    """Also layers that read another's rows, rings in every position, and plain steps."""
    target = target_of(family)
    target.kernels = noted = Noted(references=True)
    held = target.make_cache()
    passes = (5, 20, 3, 1, 1, 64)
    for count in passes:
        target.forward(mx.array([tiny.prompt_of(count)]), held)
    kind = recurrent_cache.RecurrentCache
    recurrent = [layer for layer in flat(held.layers) if isinstance(layer, kind)]
    attention_layers = target.layers - len(recurrent)
    assert noted.ran["verify_attention"] == len(passes) * attention_layers
    taped = [count for count in passes if count > 1]  # a plain step is never taken back
    deltas = sum(len(layer.cache) == 2 for layer in recurrent)  # LFM2's layers have a window only
    assert noted.ran["gated_delta_tape"] == len(taped) * deltas
    assert noted.ran["gated_delta_inputs"] == noted.ran["gated_delta_tape"]
    target.kernels = Kernels()


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("family", ["llama_sliding", "gemma4_unified", "gpt_oss", "qwen3_next"])
def test_logits(family: str, count: int) -> None:
    """A pass behind 0 to 40 tokens, read in odd pieces, has stock's logits but for roundings."""
    target = tiny.make_target(family, sober=True)
    for length in (0, 3, tiny.WINDOW - 1, tiny.WINDOW, 40):
        out = []
        for kernels in (Kernels(), Kernels(references=True)):
            held = target.make_cache()
            for first in range(0, length, 5):
                tokens = tiny.prompt_of(40)[first : min(first + 5, length)]
                mx.eval(target.forward(mx.array([tokens]), held)[0])
            if length:
                held.rewind(length - 1)  # where a ring was full it has a filler now
            target.kernels = kernels
            out.append(target.forward(mx.array([tiny.prompt_of(count, 3)]), held)[0])
            target.kernels = Kernels()
        size = float(mx.abs(out[0]).max().item())  # type: ignore
        assert tiny.apart(*out) < 2e-5 * max(1.0, size)


EXACT = ("qwen3", "llama_sliding", "muse_glimmer", "gemma4_unified", "qwen3_5", "lfm2")
SIZES = [(0, 5), (tiny.WINDOW - 1, 16), (30, 2)]


@pytest.mark.parametrize("family", EXACT)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_rows_bits_are_those_of_plain_steps(family: str, dtype: mx.Dtype) -> None:
    """Chains, trees, and steps after a part of either was kept."""
    target = exact_rows.target_of(family, Kernels(exact=True), dtype)
    lengths = (0, 1, 3, 11, 12, 13, 30) if tiny.ALL else ()
    exact_rows.check_all(target, [*SIZES, *((n, r) for n in lengths for r in (2, 7, 16))])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_exact_mode_refuses_what_it_does_not_know(family: str) -> None:
    """Latent attention is named, before anything is read; the others are taken."""
    target, exact = tiny.make_target(family), Kernels(exact=True)
    if family in LATENT:
        assert target.stock_attention
        with pytest.raises(DFlashError, match=family) as caught:
            target.kernels = exact
        assert caught.value.hint
        assert target.kernels == Kernels()
        with pytest.raises(DFlashError, match=family):
            Target(target.model, target.checkpoint, target.eos_ids, exact)
    else:
        assert target.stock_attention == ()
        target.kernels = exact


def test_exact_passes_refuse_what_they_do_not_know() -> None:
    """A quantised cache, a mask of somebody else, and a tree larger than a kernel's rows."""
    target = tiny.make_target("llama", head_dim=32)
    target.kernels = Kernels(exact=True)
    held = TargetCache([QuantizedKVCache(group_size=32, bits=8) for _ in range(3)])
    with pytest.raises(DFlashError, match="QuantizedKVCache"):
        target.forward(mx.array([SHORT]), held)
    held = target.make_cache()
    now = attention.MaskedRows(attention.Rows.of(0, range(-1, 4)))
    keys = mx.zeros((1, 1, 5, 32))
    held.members[0].update_and_fetch(keys, keys)
    assert now.cached(keys, held.members[0], mx.ones((5, 5), mx.bool_)) is None
    assert now.cached(keys, held.members[0], "causal") is not None

    target.kernels = Kernels(MetalLauncher(), exact=True)
    tree = Tree((5,) * 64, (0,) * 64, (1,) * 64, (0.0,) * 64)
    held = target.make_cache()
    with held.reading(tree), pytest.raises(DFlashError, match="64 rows"):
        target.forward(mx.array([[1, *tree.tokens]]), held)


def test_a_pass_leaves_nothing_behind() -> None:
    """No arrays of a cache are held, or they would be copied at the next pass; no functions."""
    target = target_of("gemma4_unified")
    target.kernels = Kernels(references=True)
    held = target.make_cache()
    tree = Tree((5, 6), (0, 0), (1, 1), (0.0, 0.0))
    target.forward(mx.array([LONG]), held)
    with held.reading(tree):
        before = [vars(cache)["make_mask"] for cache in held.members]
        target.forward(mx.array([[1, *tree.tokens]]), held)
        assert [vars(cache)["make_mask"] for cache in held.members] == before
    assert target._attention._passes == [None]
    assert not any("make_mask" in vars(cache) for cache in held.members)
    with pytest.raises(IndexError), target._attention.over([(3, held.members, None)]):
        raise IndexError
    assert target._attention._passes == [None]
    target.kernels = Kernels()


def test_two_targets_of_one_model() -> None:
    """Each has its own kernels, though they share the layers; the newer one's are asked."""
    first = tiny.make_target("qwen3_5")
    noted, other = Noted(references=True), Noted(references=True)
    first.kernels = noted
    second = Target(first.model, first.checkpoint, first.eos_ids, other)
    second.forward(mx.array([SHORT]), second.make_cache())
    assert not noted.ran
    assert other.ran.keys() == {
        "verify_attention",
        "gated_delta_inputs",
        "gated_delta_tape",
        "small_m_qmm",
    }


def test_mlx_lms_classes_stay_as_they_are() -> None:
    """Another model of the same class attends by mlx-lm's function."""
    target = target_of("qwen3")
    layer: Any = target.parts.layers[0].self_attn
    kind: Any = attention.stock_class(layer)
    assert type(layer) is not kind
    assert isinstance(layer, kind)
    assert kind.__call__.__globals__[attention.NAME] is attention.scaled_dot_product_attention
    assert type(target.parts.layers[1].self_attn) is type(layer)
    again: Any = Target(target.model, target.checkpoint, target.eos_ids)
    assert attention.stock_class(again.parts.layers[0].self_attn) is kind
