"""The reference of the few-row product: it is MLX's own, and rows do not depend on each other."""

import mlx.core as mx
import pytest
from metal.packed import AFFINE, KINDS, rows_of, truth, weights_of

from dflash_mlx.kernels import small_m_qmm
from dflash_mlx.kernels.small_m_qmm import Weights, fits, reference


@pytest.mark.parametrize("kind", [*KINDS, *AFFINE])
def test_it_is_the_product_with_dequantised_weights(kind: tuple[int, int, str]) -> None:
    """Every way to hold weights, with something added."""
    x, weights = rows_of(5, 256), weights_of(9, 256, kind, biased=True)
    out = reference(x, weights)
    assert out.dtype == x.dtype
    assert mx.allclose(out, truth(x, weights), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_every_row_has_the_bits_it_has_alone(kind: tuple[int, int, str], dtype: mx.Dtype) -> None:
    """What --exact rests on where no kernel runs."""
    x, weights = rows_of(16, 512, dtype), weights_of(24, 512, kind, dtype)
    out = reference(x, weights)
    for i in range(16):
        assert mx.array_equal(out[i : i + 1], reference(x[i : i + 1], weights))


def test_it_never_asks_for_several_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a backend whose products depend on how many rows there are, as on a Mac, and not here."""

    def careless(x: mx.array, weights: Weights) -> mx.array:
        return honest(x, weights) * (1 + len(x) / 100)

    honest = small_m_qmm.product
    monkeypatch.setattr(small_m_qmm, "product", careless)
    x, weights = rows_of(3, 64), weights_of(4, 64, KINDS[1])
    alone = mx.concatenate([careless(x[i : i + 1], weights) for i in range(3)])
    assert mx.array_equal(reference(x, weights), alone)
    assert not mx.allclose(careless(x, weights), alone)


def test_what_the_kernel_takes() -> None:
    """Widths, modes and groups that it does not know are left to the reference."""
    x = rows_of(4, 128)
    assert all(fits(x, weights_of(8, 128, kind)) for kind in (*KINDS, *AFFINE))
    assert not fits(x, weights_of(8, 128, (64, 3, "affine")))
    assert not fits(x, weights_of(8, 128, (32, 8, "mxfp8")))
    assert not fits(x, weights_of(8, 128, (16, 4, "nvfp4")))
    assert not fits(rows_of(4, 10), weights_of(8, 10, KINDS[0]))
    assert not fits(rows_of(0, 128), weights_of(8, 128, KINDS[0]))
    assert fits(x[None], weights_of(8, 128, KINDS[0]))
    assert not fits(x[0], weights_of(8, 128, KINDS[0]))
    assert not fits(x, Weights(mx.zeros((8, 128), mx.int32)))
