"""What is cheaper on the CPU computes the same as MLX's own modules."""

from collections.abc import Callable

import mlx.core as mx
import pytest
import tiny
from mlx import nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from dflash_mlx.cpu import MaskedCache, SharedRope, on_cpu, settle, unsettle

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


def test_a_stale_table_is_caught():
    """The check above can fail: a table that is kept for another position is seen."""

    class Stale(SharedRope):
        def __call__(self, x, offset=0):
            return super().__call__(x, offset=0 if offset == 51 else offset)

    rope = nn.RoPE(32, traditional=False)
    assert difference(Stale(rope), rope) > 0.01


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
    settle(ours)
    assert type(ours.plain) is SharedRope
    assert type(ours.pairs) is nn.RoPE
    assert type(other.plain) is nn.RoPE
    assert ours.proj.weight.dtype == mx.float32
    unsettle(ours)
    assert type(ours.plain) is nn.RoPE


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
