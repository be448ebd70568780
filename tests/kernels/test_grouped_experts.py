"""Layers of experts by the reference and by mlx-lm: the same numbers, and rows that stay alone."""

from dataclasses import replace
from typing import Any, cast

import mlx.core as mx
import pytest
from kernel_checks import GENERIC
from metal.packed import AFFINE, KINDS, chosen, experts_of, rows_of
from mlx import nn
from mlx_lm.models.switch_layers import SwitchGLU

from dflash_mlx.kernels import grouped_experts
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.grouped_experts import (
    OP,
    Experts,
    fits,
    reference,
    shared_by_mlx,
    size,
    sizes,
)
from dflash_mlx.kernels.shapes import ExpertShape, LinearShape
from dflash_mlx.kernels.source import Launcher
from dflash_mlx.models.linear import Products, RowByRow, RowsLinear, stand_in
from dflash_mlx.selfcheck.trials import mlx_experts

Kind = tuple[int, int, str]
Case = tuple[mx.array, mx.array, Experts]


def case_of(rows: int, kind: Kind = KINDS[1], dtype: mx.Dtype = mx.float32) -> Case:
    layer = experts_of(8, (256, 128, 64), kind, dtype, biased=True)
    return rows_of(rows, 256, dtype), chosen(rows, 3, 8), layer


@pytest.mark.parametrize("rows", [1, 5, 25])
@pytest.mark.parametrize("kind", dict.fromkeys([*KINDS, *AFFINE]))
def test_it_is_mlx_lms_layer(kind: Kind, rows: int) -> None:
    """Its gathers of few pairs, and of many, which it sorts."""
    case = case_of(rows, kind)
    want = mlx_experts(Kernels(), *case)(case[0])
    assert mx.allclose(reference(*case), want, rtol=1e-5, atol=1e-5)
    broken = case[0], case[1][:, ::-1], case[2]
    assert not mx.allclose(reference(*broken), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(KINDS[0], mx.float32), *[(kind, mx.bfloat16) for kind in KINDS[1:]]],  # as MLX's CPU backend
)
def test_every_row_has_the_bits_it_has_alone(kind: Kind, dtype: mx.Dtype) -> None:
    """What --exact rests on where no kernel runs."""
    x, indices, layer = case_of(6, kind, dtype)
    out = reference(x, indices, layer)
    for i in range(6):
        assert mx.array_equal(out[i], reference(x[i : i + 1], indices[i : i + 1], layer)[0])


def test_it_never_asks_for_several_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a backend whose products depend on how many rows there are."""

    def careless(x: mx.array, *rest: Any) -> mx.array:
        return honest(x, *rest) * (1 + len(x) / 100)

    honest = grouped_experts.layer
    monkeypatch.setattr(grouped_experts, "layer", careless)
    x, indices, layer = case_of(3)
    alone = [careless(x[i : i + 1], indices[i : i + 1], layer) for i in range(3)]
    assert mx.array_equal(reference(x, indices, layer), mx.concatenate(alone))


def test_what_the_kernel_takes() -> None:
    """Weights of the other product, each with experts in front."""
    x, indices, layer = case_of(4)
    assert all(fits(*case_of(4, kind)) for kind in (*KINDS, *AFFINE))
    assert fits(x[None], indices[None], layer)
    assert not fits(x, indices, replace(layer, up=replace(layer.up, bits=3)))
    flat = replace(layer.down, values=layer.down.values[0])
    assert not fits(x, indices, replace(layer, down=flat))
    assert not fits(x.astype(mx.int32), indices, layer)


def test_where_mlx_shares_reads_itself() -> None:
    """From 4 pairs an expert on, if they are sorted: 64 of them."""
    layer = case_of(1)[2]
    shared = [rows for rows in range(1, 33) if shared_by_mlx(chosen(rows, 3, 8), layer)]
    assert shared == [*range(22, 33)]
    part = LinearShape(64, 128, 4, 64, "affine", "float32")
    for experts, buckets in ((8, [2, 4, 8]), (128, [2, 4, 8, 16, 32])):
        shape = ExpertShape(experts, 4, part, part, replace(part, inputs=64, outputs=128))
        found = sizes(replace(GENERIC, experts=(shape,)))
        assert [size(*case)[-1] for case in found] == buckets


class Noted:
    def __init__(self) -> None:
        self.pairs: list[int] = []

    def __call__(self, source: Any, inputs: Any, **call: Any) -> list[mx.array]:
        self.pairs.append(call["grid"][1])
        return [mx.zeros(call["output_shapes"][0], call["output_dtypes"][0])]


def stand_in_of(layer: nn.Module, kernels: Kernels) -> Any:
    return stand_in(layer, Products(kernels))


@pytest.mark.parametrize(("exact", "taken"), [(False, [2, 32]), (True, [1, 2, 32, 33, 64])])
def test_how_many_rows_a_layer_takes(exact: bool, taken: list[int]) -> None:
    """A plain step and a prompt are MLX's; with exactness only what is longer than any verify."""
    launcher = Noted()
    plain = SwitchGLU(64, 64, 64)
    layer = stand_in_of(plain, Kernels(cast(Launcher, launcher), exact=exact))
    assert isinstance(layer, RowsLinear)
    for rows in (1, 2, 32, 33, 64, 65):
        x, indices = mx.ones((1, rows, 64)), chosen(rows, 2, 64)[None]
        assert layer(x, indices).shape == (1, rows, 2, 64)
    assert launcher.pairs == [2 * rows for rows in taken for _ in range(3)]


def test_what_is_left_to_mlx() -> None:
    """Sizes that lost, a kernel that is off, rows whose reads MLX shares, an unknown activation."""
    launcher = Noted()
    plain = SwitchGLU(64, 64, 8)
    x, indices = rows_of(4, 64)[None], chosen(4, 2, 8)[None]
    some = {OP.name: frozenset({("another",)})}
    for kernels in (
        Kernels(cast(Launcher, launcher), sizes=some),
        Kernels(cast(Launcher, launcher), off={OP.name: "slower"}),
    ):
        layer = stand_in_of(plain, kernels)
        assert mx.array_equal(layer(x, indices), plain(x, indices))
    layer = stand_in_of(plain, Kernels(cast(Launcher, launcher)))
    many, theirs = rows_of(32, 64)[None], chosen(32, 2, 8)[None]
    assert mx.array_equal(layer(many, theirs), plain(many, theirs))
    assert not launcher.pairs
    unknown = SwitchGLU(64, 64, 8, cast(Any, nn.SiLU()))
    assert stand_in_of(unknown, Kernels(cast(Launcher, launcher))) is unknown
    assert isinstance(stand_in_of(unknown, Kernels(exact=True)), RowByRow)


def test_exact_layers_are_row_by_row_without_the_kernel() -> None:
    """Each row as alone; and the class of mlx-lm stays as it is."""
    call = SwitchGLU.__call__
    plain = SwitchGLU(64, 64, 8)
    layer = stand_in_of(plain, Kernels(exact=True))
    x, indices = rows_of(40, 64)[None], chosen(40, 2, 8)[None]
    out = layer(x, indices)
    for i in (0, 17, 39):
        row = slice(i, i + 1)
        assert mx.array_equal(out[:, row], plain(x[:, row], indices[:, row]))
    assert SwitchGLU.__call__ is call
