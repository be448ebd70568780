"""Stand-ins for linear layers: where they are, when they work, and that nothing else changes."""

from typing import Any, cast

import mlx.core as mx
import pytest
import tiny
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.activations import swiglu
from mlx_lm.models.qwen3 import MLP
from mlx_lm.models.switch_layers import SwitchGLU

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import Launcher
from dflash_mlx.models.linear import (
    BLOCKS,
    GATED,
    Products,
    RowByRow,
    RowsBlock,
    RowsEmbedding,
    RowsLinear,
    StandIn,
    install,
)
from dflash_mlx.models.linear import stand_in as stand_in_of

OWN, EXACT = Kernels(references=True), Kernels(exact=True)
EXPERTS = {
    "qwen3_moe",
    "qwen3_5_moe",
    "qwen3_next",
    "gemma4",
    "gpt_oss",
    "minimax",
    "glm4_moe",
    "lfm2_moe",
}
LATENT = {"deepseek_v3", "kimi_k25", "glm_moe_dsa"}


def stand_in(module: nn.Module, kernels: Kernels) -> nn.Module:
    return stand_in_of(module, Products(kernels))


def stand_ins(model: nn.Module) -> list[StandIn]:
    return [module for module in model.modules() if isinstance(module, StandIn)]


def bytes_of(model: nn.Module) -> int:
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    return sum(array.nbytes for _, array in parameters)


class Careless(nn.Module):
    """Treats rows alike but for their number, as a kernel does that sums in another order."""

    def __call__(self, x: mx.array, ids: mx.array) -> tuple[mx.array, mx.array]:
        return x * (1 + x.shape[-2] / 100), (ids[..., None] * x[..., None, :])


class Counting:
    """A launcher that only notes how many rows it was given."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, source: Any, inputs: Any, **call: Any) -> list[mx.array]:
        self.rows.append(inputs[0].size // inputs[0].shape[-1])
        return [mx.zeros(call["output_shapes"][0], call["output_dtypes"][0])]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_computes_the_same(family: str) -> None:
    """References in the place of all that can have a stand-in; then the plain model again."""
    target = tiny.make_target(family)
    tokens, size = mx.array([tiny.prompt_of(7)]), bytes_of(target.model)
    stock = target.model(tokens)
    for kernels in (EXACT, OWN):
        install(target.model, kernels)
        found = stand_ins(target.model)
        plain = [m for m in target.model.modules() if type(m) in (nn.Linear, nn.Embedding)]
        assert {id(part) for m in found for part in m["plain"].modules()} >= {id(m) for m in plain}
        experts = [m for m in found if type(m["plain"]) is SwitchGLU]
        assert bool(experts) == (family in EXPERTS | LATENT)
        assert bytes_of(target.model) == size
        assert tiny.apart(target.model(tokens), stock) < 1e-4
    install(target.model, Kernels())
    assert not stand_ins(target.model)
    assert mx.array_equal(target.model(tokens), stock)


def test_parameters_and_attributes_are_the_modules() -> None:
    """Memory is counted and modules are asked for their weights through a stand-in."""
    model = nn.Module()
    model.many = [nn.Linear(64, 8), nn.LayerNorm(64)]
    model.table = nn.Embedding(16, 64)
    nn.quantize(model, 32, 4)
    install(model, OWN)
    linear, table = model.many[0], model.table
    assert isinstance(linear, RowsLinear)
    assert isinstance(table, RowsEmbedding)
    assert (linear.bits, linear.group_size, linear.mode) == (4, 32, "affine")
    assert linear.weight is linear["plain"]["weight"]
    assert table.num_embeddings == 16
    with pytest.raises(AttributeError):
        linear.nothing  # noqa: B018
    x = mx.random.normal((1, 3, 64))
    before = linear(x)
    model.set_dtype(mx.float16)
    assert linear.scales.dtype == mx.float16
    assert mx.allclose(linear(x), before, rtol=1e-2, atol=1e-2)
    assert mx.array_equal(table(mx.array([[3, 1]])), table["plain"](mx.array([[3, 1]])))


@pytest.mark.parametrize(("exact", "taken"), [(False, [2, 16]), (True, [1, 2, 16, 32, 33, 64])])
def test_how_many_rows_they_take(exact: bool, taken: list[int]) -> None:
    """A plain step and a prompt are MLX's; with exactness only what is longer than any verify."""
    launcher = Counting()
    kernels = Kernels(cast(Launcher, launcher), exact=exact)
    linear = stand_in(nn.Linear(8, 4), kernels)
    table = cast(Any, stand_in(nn.Embedding(9, 8), kernels))
    for rows in (1, 2, 16, 32, 33, 64, 65):
        x = mx.ones((1, rows, 8))
        assert linear(x).shape == (1, rows, 4)
        assert table.as_linear(x).shape == (1, rows, 9)
    assert launcher.rows == [rows for rows in taken for _ in range(2)]


def test_a_kernel_that_is_off_or_does_not_fit_leaves_the_layer_to_mlx() -> None:
    """Not to the reference, which would be slow."""
    launcher = Counting()
    x = mx.random.normal((1, 4, 6))
    for size, off in ((6, {}), (8, {"small_m_qmm": "slower"})):
        plain = nn.Linear(size, 3)
        linear = stand_in(plain, Kernels(cast(Launcher, launcher), off=off))
        rows = mx.pad(x, [(0, 0), (0, 0), (0, size - 6)])
        assert mx.array_equal(linear(rows), plain(rows))
    assert not launcher.rows


def test_a_kernel_that_is_off_has_no_stand_ins() -> None:
    """A stand-in that never launches costs the host time in every layer of every pass."""
    launcher = cast(Launcher, Counting())
    for plain in (nn.Linear(8, 3), nn.Embedding(9, 8)):
        for off in (
            Kernels(launcher, off={"small_m_qmm": "slower"}),
            Kernels(launcher, on=frozenset({"verify_attention"})),
        ):
            assert stand_in(plain, off) is plain
            assert stand_in(stand_in(plain, Kernels(launcher)), off) is plain


class Heads(nn.Module):
    """What an attention module makes of its rows, in the order of mlx-lm's."""

    def __init__(self, bits: tuple[int, int, int] = (4, 4, 4)):
        super().__init__()
        sizes = zip(bits, (96, 32, 32), strict=True)
        linears = [nn.QuantizedLinear(64, n, b == 8, 32, b) for b, n in sizes]
        self.q_proj, self.k_proj, self.v_proj = linears

    def __call__(self, x: mx.array) -> list[mx.array]:
        return [self.q_proj(x), self.k_proj(x), self.v_proj(x)]


@pytest.mark.parametrize("bits", [(4, 4, 4), (4, 8, 6)])
def test_queries_keys_and_values_share_a_call(bits: tuple[int, int, int]) -> None:
    """They have the bits of each alone, by whatever bits each is packed; nothing is held."""
    model: Any = nn.Module()
    heads: Any = Heads(bits)
    model.heads = heads
    names = ("q_proj", "k_proj", "v_proj")
    alone = [stand_in(getattr(model.heads, name), OWN) for name in names]
    x = mx.random.normal((1, 5, 64))
    wanted = [part(x) for part in alone]  # type: ignore[operator]
    install(model, OWN)
    found = model.heads(x)
    assert all(mx.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    shared: Any = heads.q_proj._product.func.__self__
    assert shared._rows is None
    assert not shared._waiting
    # Called by itself, or after other rows, each is still right.
    other = mx.random.normal((1, 5, 64))
    model.heads.q_proj(other)
    assert mx.array_equal(model.heads.k_proj(x), wanted[1])
    assert mx.array_equal(model.heads.v_proj(x), wanted[2])


def test_a_call_is_shared_by_plain_linear_layers_alone() -> None:
    """An adapter of somebody else's stays as it is, and so do the layers beside it alone."""

    class Adapted(nn.Module):
        def __init__(self, plain: nn.Module):
            super().__init__()
            self.linear = plain

        def __call__(self, x: mx.array) -> mx.array:
            return 2 * self.linear(x)  # type: ignore[operator]

    model: Any = nn.Module()
    heads: Any = Heads()
    heads.k_proj, model.heads = Adapted(heads.k_proj), heads
    x = mx.random.normal((1, 5, 64))
    wanted = model.heads(x)
    install(model, OWN)
    assert type(model.heads.k_proj) is Adapted
    assert isinstance(model.heads.k_proj.linear, RowsLinear)
    found = model.heads(x)
    assert all(mx.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def test_a_gated_layer_is_one_function() -> None:
    """Of mlx-lm's class it is one stand-in, whose few rows have the bits of its parts'."""
    plain = MLP(64, 96)
    nn.quantize(plain, 32, 4)
    x = mx.random.normal((1, 5, 64))
    gate, up, down = (stand_in(plain[name], OWN) for name in GATED)
    wanted = down(swiglu(gate(x), up(x)))  # type: ignore[operator]
    whole: Any = stand_in(plain, OWN)
    assert isinstance(whole, RowsLinear)
    assert mx.array_equal(whole(x), wanted)
    assert mx.allclose(whole(x), plain(x), atol=1e-5)
    assert dict(tree_flatten(whole.parameters())).keys() == {
        f"plain.{name}" for name, _ in cast(list[Any], tree_flatten(plain.parameters()))
    }


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_the_second_half_of_a_layer_is_one_function(name: str) -> None:
    """Guards against an mlx-lm whose layers learn something new; taken out it leaves the layer."""
    model: Any = tiny.make_target(name.split(".")[-2]).model
    x = mx.random.normal((1, 5, 32), key=mx.random.key(4))
    plain = list(model.layers)
    kinds = {f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in plain}
    wanted = [layer(x) for layer in plain]
    install(model, OWN)
    assert kinds == {name}
    assert all(isinstance(layer, RowsBlock) for layer in model.layers)
    for layer, want in zip(model.layers, wanted, strict=True):
        assert mx.allclose(layer(x), want, atol=1e-5)
        assert not mx.allclose(layer(1.01 * x), want, atol=1e-5)
        long = mx.concatenate([x] * 9, axis=1)
        assert mx.allclose(layer(long), layer["plain"](long), atol=1e-5)
    install(model, Kernels())
    assert [id(layer) for layer in model.layers] == [id(layer) for layer in plain]


def test_dtypes_are_those_of_mlx() -> None:
    """Whatever rows and parameters are."""
    floats = (mx.float32, mx.bfloat16, mx.float16)
    for dtype in floats:
        for plain in (nn.Linear(64, 5), nn.QuantizedLinear(64, 5, group_size=32)):
            plain.set_dtype(dtype)
            for x in (mx.ones((2, 64), other) for other in floats):
                assert stand_in(plain, OWN)(x).dtype == plain(x).dtype


def test_row_by_row() -> None:
    """Several inputs and outputs, more axes behind the rows; a prompt goes through at once."""
    plain = Careless()
    rows = RowByRow(plain)
    x, ids = mx.random.normal((1, 5, 8)), mx.array([[[1, 2, 3]] * 5])
    got = rows(x, ids)
    for i in range(5):
        alone = plain(x[:, i : i + 1], ids[:, i : i + 1])
        assert all(
            mx.array_equal(part[:, i : i + 1], one) for part, one in zip(got, alone, strict=True)
        )
    assert not mx.array_equal(got[0], plain(x, ids)[0])
    long, many = mx.ones((1, 81, 8)), mx.ones((1, 81, 3))
    assert mx.array_equal(rows(long, many)[0], plain(long, many)[0])


def test_experts_are_left_alone_where_no_kernel_is_used() -> None:
    """Exact ones always have a stand-in, and only one."""
    experts = SwitchGLU(8, 8, 2)
    assert stand_in(experts, Kernels()) is experts
    again = stand_in(stand_in(experts, EXACT), EXACT)
    assert isinstance(again, RowsLinear)
    assert again["plain"] is experts
