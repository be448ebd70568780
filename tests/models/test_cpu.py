"""What is cheaper on the CPU computes the same as MLX's own modules."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import gemma
from mlx_lm.models.cache import KVCache, make_prompt_cache

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.cpu.modules import (
    CpuNorm,
    CpuSwiGLU,
    MaskedCache,
    SharedRope,
    is_swiglu,
    on_cpu,
    restore_modules,
    softmax,
    swiglu,
    use_cpu_modules,
)
from dflash_mlx.drafters.network import MLP, GeluMLP

POSITIONS = [(0, 5), (50, 16), (50, 3), (51, 16), (1999, 1), (0, 300)]


def difference(rope: Callable[..., mx.array], other: Callable[..., mx.array]) -> float:
    """The largest difference over several positions, asked for twice in turn."""
    worst = 0.0
    for offset, length in POSITIONS + POSITIONS[::-1]:
        x = mx.random.normal((1, 3, length, 32), key=mx.random.key(length))
        apart = mx.abs(rope(x, offset=offset) - other(x, offset=offset)).max()
        worst = max(worst, float(apart.item()))  # pyright: ignore[reportArgumentType]
    return worst


@pytest.mark.skipif(not on_cpu(), reason="tables are shared only where MLX computes on the CPU")
@pytest.mark.parametrize("base", [1e4, 1e7])
def test_same_rotation_as_mlx(base):
    """Guards exactness: a table of other positions or rates would change every answer a little."""
    rope = nn.RoPE(32, traditional=False, base=base)
    assert difference(SharedRope(rope), rope) == 0.0


def test_batched_offsets_and_partial_rotations_go_to_mlx():
    """Guards training (one offset a block) and models that rotate only part of a head."""
    rope = nn.RoPE(16, traditional=False)
    shared = SharedRope(rope)
    x = mx.random.normal((2, 3, 4, 32), key=mx.random.key(0))
    assert mx.array_equal(shared(x, offset=7), rope(x, offset=7))
    offsets = mx.array([3, 9])
    expected = rope(x, offset=offsets)  # pyright: ignore[reportArgumentType]
    assert mx.array_equal(shared(x, offset=offsets), expected)


@pytest.mark.skipif(not on_cpu(), reason="nothing is replaced on a GPU")
def test_only_plain_rotations_of_our_own_model_are_replaced():
    """Guards other rotary kinds and other instances of the same class."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = nn.RoPE(8)
            self.pairs = nn.RoPE(8, traditional=True)
            self.proj = nn.Linear(4, 4)

    ours, other = Layer(), Layer()
    ours.proj.weight = ours.proj.weight.astype(mx.bfloat16)
    use_cpu_modules(ours)
    assert type(ours.plain) is SharedRope
    assert type(ours.pairs) is nn.RoPE
    assert type(other.plain) is nn.RoPE
    assert ours.proj.weight.dtype == mx.float32
    restore_modules(ours)
    assert type(ours.plain) is nn.RoPE


@pytest.mark.skipif(use_openblas() is None, reason="no OpenBLAS here")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="takes a second core")
@pytest.mark.parametrize("said", ["", "2"])
def test_a_trainer_has_one_thread_of_openblas(said):
    """OpenBLAS is loaded with the package: a variable that was set after that changed nothing."""
    program = (
        "import ctypes, os\n"
        "from dflash_mlx.cpu.blas import use_all_cores\n"
        "from dflash_mlx.cpu.blas import use_openblas\n"
        "use_all_cores()\n"
        "print(ctypes.CDLL(use_openblas()).openblas_get_num_threads())\n"
    )
    env = {**os.environ, "OPENBLAS_NUM_THREADS": said}
    if not said:
        del env["OPENBLAS_NUM_THREADS"]
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{said or 1}\n", "")


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_mask_for_all_layers_is_mlx_lms(family):
    """Guards exactness: the mask that all layers share gives stock mlx-lm's logits bit by bit."""
    target = tiny.make_target(family)
    layers = len(make_prompt_cache(target.model))

    def logits(kind: type[KVCache]) -> list[mx.array]:
        caches = [kind() for _ in range(layers)]
        return [target.model(mx.array([part]), cache=caches) for part in ([1, 2, 3], [4, 5], [6])]

    for ours, stock in zip(logits(MaskedCache), logits(KVCache), strict=True):
        assert mx.array_equal(ours, stock)

    class Blind(MaskedCache):
        def make_mask(self, *args, **kwargs):
            mask = super().make_mask(*args, **kwargs)
            return None if mask is None else mx.ones_like(mask)

    assert not mx.allclose(logits(Blind)[1], logits(KVCache)[1], atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 64), (1, 16, 192), (1, 5, 6, 32), (1, 90, 192)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_norms_have_the_bits_of_mlx(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    """Few elements and many: exact mode and stock mlx-lm see no other numbers."""
    plain, ours = nn.RMSNorm(shape[-1], 1e-5), CpuNorm(shape[-1], 1e-5)
    ours.weight = plain.weight = mx.random.normal(shape[-1:], dtype, key=mx.random.key(2))
    x = mx.random.normal(shape, dtype, key=mx.random.key(3))
    assert mx.array_equal(ours(x), plain(x))
    rows = [ours(x[:, i : i + 1]) for i in range(shape[1])]
    assert mx.array_equal(mx.concatenate(rows, 1), plain(x))
    assert not mx.array_equal(ours(x), nn.RMSNorm.__call__(ours, x * 1.01))


@pytest.mark.skipif(not on_cpu(), reason="norms are replaced only where MLX computes on the CPU")
def test_norms_keep_their_parameters_and_slopes() -> None:
    """They are the modules that a model had; training goes through them."""
    model: Any = nn.Module()
    model.norm = nn.RMSNorm(8)
    plain, names = nn.RMSNorm(8), dict(tree_flatten(model.parameters())).keys()
    use_cpu_modules(model)
    assert type(model.norm) is CpuNorm
    assert dict(tree_flatten(model.parameters())).keys() == names
    x = mx.random.normal((1, 3, 8))
    slopes = [mx.grad(lambda x, n=norm: n(x).square().sum())(x) for norm in (model.norm, plain)]
    assert mx.allclose(*slopes, atol=1e-5)


def apart(ours: mx.array, gate: mx.array, up: mx.array) -> float:
    """The largest relative error against float64."""
    x, y = np.array(gate, dtype=np.float64), np.array(up, dtype=np.float64)
    true = x * y / (1 + np.exp(-x))
    return float(np.abs(np.array(ours, dtype=np.float64) / true - 1).max())


def test_swiglu_is_exact_to_float32():
    """Guards every value a gate can have, and what MLX makes of those that are no numbers."""
    gate = mx.linspace(-80, 80, 100_000)[None]
    up = mx.random.uniform(0.5, 2, gate.shape, key=mx.random.key(0))
    assert apart(swiglu(gate, up), gate, up) < 4e-7
    assert apart(swiglu(gate + 1e-6 * gate, up), gate, up) > 4e-7  # the check can fail
    ends = mx.array([[0.0, -0.0, 1e30, -1e30, math.inf, math.nan]])
    said: Any = swiglu(ends, mx.ones_like(ends))[0].tolist()
    assert said[:3] == [0, 0, mx.array(1e30).item()]
    assert abs(said[3]) < 1e-6
    assert said[4] == math.inf
    assert math.isnan(said[5])


@pytest.mark.parametrize(
    "name",
    [
        "dflash_mlx.drafters.dflash.model.MLP",
        "mlx_lm.models.llama.MLP",
        "mlx_lm.models.cohere.MLP",
        "mlx_lm.models.qwen2.MLP",
        "mlx_lm.models.qwen3.MLP",
        "mlx_lm.models.qwen3_next.Qwen3NextMLP",
    ],
)
def test_swiglu_layers_compute_that_and_nothing_else(name):
    """Guards against an mlx-lm whose feed-forward module learns something new."""
    module, kind = name.rsplit(".", 1)
    made = getattr(import_module(module), kind)
    sizes = SimpleNamespace(hidden_size=16, intermediate_size=24, mlp_bias=True)
    try:
        plain = made(16, 24)
    except TypeError:
        plain = made(sizes)
    tiny.randomise(plain, seed=1, scale=1.0)
    x = mx.random.normal((1, 7, 16), key=mx.random.key(1))
    assert is_swiglu(plain)
    stand_in = CpuSwiGLU(plain)
    assert mx.allclose(stand_in(x), plain(x), rtol=1e-5, atol=1e-6)
    assert mx.array_equal(stand_in(x[:, :1]), plain(x[:, :1]))
    assert dict(tree_flatten(stand_in.parameters())).keys() == (
        dict(tree_flatten(plain.parameters())).keys()
    )


def test_other_feed_forward_modules_stay():
    """GEGLU has the same parts, and other code; a drafter's SwiGLU has that of Llama's."""
    config: Any = SimpleNamespace(hidden_size=16, intermediate_size=24)
    assert is_swiglu(MLP(config))
    assert not is_swiglu(gemma.MLP(16, 24))
    assert not is_swiglu(GeluMLP(config))


def test_softmax_is_as_precise_as_mlx():
    """Guards training's losses: large differences, minus infinity and equal numbers included."""
    mx.random.seed(0)
    rows = mx.concatenate([20 * mx.random.normal((4, 500)), mx.full((4, 1), -mx.inf)], axis=1)
    rows = mx.concatenate([rows, mx.zeros((1, 501))])
    found, wanted = softmax(rows), mx.softmax(rows, axis=-1, precise=True)
    assert mx.allclose(found, wanted, rtol=2e-5, atol=1e-12)
    assert mx.allclose(found.sum(axis=-1), mx.ones(5), rtol=1e-5)
