"""Layers of one model instance whose few rows go through our kernels.

Each stands in for one module that MLX or mlx-lm made and holds it: parameters stay where they were
(one name deeper) and attributes are the module's. Where rows must not depend on each other, layers
of experts and their gates run row by row. Latent attention's products of heads are left alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP

from dflash_mlx.cpu.modules import is_swiglu
from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels
from dflash_mlx.kernels.small_m_qmm import OP, Weights
from dflash_mlx.kernels.source import recorded

# Products of a few rows with the weights of MLX's modules, by our kernel or as MLX computes
# them.

ROWS = 16  # beyond, the kernel would read the weights twice, and MLX's own reads them once
NAMES = ("weight", "scales", "biases", "bias")
Product = Callable[[mx.array], mx.array]  # x [..., K] -> [..., N]
Found = Callable[..., Any]  # None where MLX is to compute it
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Format:
    """The weights of a linear layer or embedding of MLX: shape, arrays, and how packed.

    With `eps` they are those of an `nn.RMSNorm`.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    group: int = 0
    bits: int = 0
    mode: str = "affine"
    eps: float | None = None

    @classmethod
    def of(cls, plain: Any) -> "Format":
        """That of a module."""
        shape, names = plain["weight"].shape, tuple(name for name in NAMES if name in plain)
        if isinstance(plain, nn.RMSNorm):
            return cls(shape, names, eps=plain.eps)
        if "scales" not in plain:
            return cls(shape, names)
        return cls(shape, names, plain.group_size, plain.bits, plain.mode)

    def weights(self, arrays: Sequence[mx.array]) -> Weights:
        """A module's `arrays`, in the order of `names`."""
        found = dict(zip(self.names, arrays, strict=True))
        scales, biases, bias = (found.get(name) for name in NAMES[1:])
        packing = self.group, self.bits, self.mode
        return Weights(found["weight"], scales, biases, bias, *packing)


class Products:
    """The products of one model's modules by some kernels."""

    def __init__(self, kernels: Kernels):
        self.kernels = kernels
        self._least, self._most = (1, EXACT_ROWS) if kernels.exact else (2, ROWS)
        self._found: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def of(self, function: Function, *modules: Any) -> Found:
        """`function(products, x, *more)` of rows x [..., K], with each module's product.

        They have the dtypes that MLX gives. Each call reads the weights that the modules have then.
        None for a single row, which MLX does as well, and for many; with exactness only for many.
        """
        formats = tuple(Format.of(module) for module in modules)
        places = [(m, name) for m, f in zip(modules, formats, strict=True) for name in f.names]
        key = function, *formats
        if key not in self._found:

            def run(_: Any, rows: Sequence[mx.array], *arrays: mx.array) -> Any:
                return function(self._products(formats, arrays), *rows)

            self._found[key] = recorded(self.kernels.launcher, run)
        found, least, most = self._found[key], self._least, self._most

        def product(*rows: mx.array) -> Any:
            if least <= rows[0].size // rows[0].shape[-1] <= most:
                return found(rows, *[module[name] for module, name in places])
            return None

        return product

    def _products(self, formats: Sequence[Format], arrays: Sequence[mx.array]) -> list[Product]:
        products: list[Product] = []
        for form in formats:
            weights, arrays = form.weights(arrays[: len(form.names)]), arrays[len(form.names) :]
            if form.eps is not None:
                products.append(partial(normed, weights.values, form.eps))
            else:
                products.append(partial(multiply, self.kernels, weights))
        return products


def normed(weight: mx.array, eps: float, x: mx.array) -> mx.array:
    """As `nn.RMSNorm`."""
    return mx.fast.rms_norm(x, weight, eps)


def multiply(kernels: Kernels, weights: Weights, x: mx.array) -> mx.array:
    """x [..., K] -> [..., N] by `kernels`, or as `nn.QuantizedLinear` and `nn.Linear` do it."""
    w, wide = weights, weights.dtype or x.dtype
    rows = x if wide == x.dtype else x.astype(mx.result_type(wide, x.dtype))
    if (out := kernels.attempt(OP, rows, w)) is not None:
        return out
    if w.scales is None:
        return x @ w.values.T if w.bias is None else mx.addmm(w.bias, x, w.values.T)
    out = mx.quantized_matmul(x, w.values, w.scales, w.biases, True, w.group, w.bits, w.mode)
    return out if w.bias is None else out + w.bias


LINEARS = (nn.Linear, nn.QuantizedLinear)
EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
SWITCHES = (SwitchGLU, SwitchMLP)
GATE = "MoEGate"  # mlx-lm's name for routers that multiply by a weight of their own
TOGETHER = ("q_proj", "k_proj", "v_proj")  # given the same rows, one after another
GATED = ("gate_proj", "up_proj", "down_proj")
# Layers whose code is: h = x + self_attn(input_layernorm(x)), then h + mlp(post_..._layernorm(h)).
BLOCKS = frozenset({"mlx_lm.models.llama.TransformerBlock", "mlx_lm.models.qwen3.TransformerBlock"})


class StandIn(nn.Module):
    """A module of our instance in place of a `plain` one, whose attributes it has."""

    def __init__(self, plain: nn.Module):
        super().__init__()
        self["plain"] = plain  # before any attribute: __getattr__ needs it

    def __getattr__(self, name: str) -> Any:
        """Anything else is asked of the plain module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self["plain"], name)


class RowsLinear(StandIn):
    """A linear layer or SwiGLU whose few rows go through a function of products."""

    def __init__(self, plain: nn.Module, product: Found):
        super().__init__(plain)
        self._product = product

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        out = self._product(x)
        return self["plain"](x) if out is None else out


class RowsEmbedding(StandIn):
    """An `nn.Embedding` or `nn.QuantizedEmbedding`, whose table may also be the head."""

    def __init__(self, plain: nn.Module, products: Products):
        super().__init__(plain)
        self._product = products.of(only, plain)

    def __call__(self, ids: mx.array) -> mx.array:
        """Token ids [...] -> rows of the table [..., H]."""
        return self["plain"](ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., H] -> logits [..., V]."""
        out = self._product(x)
        return self["plain"].as_linear(x) if out is None else out


class RowsBlock(StandIn):
    """A layer of `BLOCKS` with a SwiGLU: all before its attention is one function, all behind too.

    `shared` are the projections that its attention begins with.
    """

    def __init__(self, plain: nn.Module, shared: "Together", second: Found):
        super().__init__(plain)
        self._shared, self._second = shared, second

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """x [B, S, H] -> [B, S, H]."""
        plain: Any = self["plain"]
        normed = self._shared.normed(x)
        mixed = plain.self_attn(plain.input_layernorm(x) if normed is None else normed, mask, cache)
        if (out := self._second(x, mixed)) is not None:
            return out
        h = x + mixed
        return h + plain.mlp(plain.post_attention_layernorm(h))


class RowByRow(StandIn):
    """A module that treats rows alike, one row at a time, so that they have the bits of one."""

    def __call__(self, *arrays: mx.array) -> Any:
        """Arrays [..., S, D] of the same rows S -> what the module gives, [..., S, ...] each."""
        axis = arrays[0].ndim - 2
        rows = arrays[0].shape[axis]
        if not 1 < rows <= EXACT_ROWS:
            return self["plain"](*arrays)
        parts = [
            self["plain"](*(array[..., i : i + 1, :] for array in arrays)) for i in range(rows)
        ]
        if isinstance(parts[0], tuple):
            return tuple(mx.concatenate([*each], axis) for each in zip(*parts, strict=True))
        return mx.concatenate(parts, axis)


class Together:
    """Linear layers of one module that are called in this order with the same rows.

    The first call computes for all; what waits for the others is held until the last call.
    """

    def __init__(self, products: Products, plains: Sequence[nn.Module]):
        self._products, self._plains = products, plains
        self._run = products.of(each, *plains)
        self._first: Found | None = None
        self._last = len(plains) - 1
        self._rows: mx.array | None = None
        self._waiting: list[mx.array] = []

    def follow(self, norm: nn.RMSNorm) -> None:
        """Compute the norm in front of the layers together with them, see `normed`."""
        self._first = self._products.of(first_half, norm, *self._plains)

    def normed(self, x: mx.array) -> mx.array | None:
        """x [..., K] -> the rows to call the layers with, all computed; None if MLX is to do it."""
        if self._first is None or (found := self._first(x)) is None:
            return None
        self._rows, *self._waiting = found
        return self._rows

    def product(self, place: int, x: mx.array) -> mx.array | None:
        """x [..., K] -> [..., N] of the layer at that place; None if MLX is to compute it."""
        if self._rows is not x:
            if (found := self._run(x)) is None:
                return None
            self._rows, self._waiting = x, found
        out = self._waiting[place]
        if place == self._last:
            self._rows, self._waiting = None, []
        return out


def only(products: Sequence[Product], x: mx.array) -> mx.array:
    """The product of one module."""
    return products[0](x)


def each(products: Sequence[Product], x: mx.array) -> list[mx.array]:
    """The products of several modules."""
    return [product(x) for product in products]


def gated(products: Sequence[Product], x: mx.array) -> mx.array:
    """SwiGLU of the gate's, the up and the down projection."""
    gate, up, down = products
    return down(swiglu(gate(x), up(x)))


def first_half(products: Sequence[Product], x: mx.array) -> list[mx.array]:
    """What a layer makes of its input before its attention: the normed rows, and their products."""
    norm, *parts = products
    rows = norm(x)
    return [rows, *each(parts, rows)]


def second_half(products: Sequence[Product], x: mx.array, mixed: mx.array) -> mx.array:
    """What a layer makes of its input and of what its attention gave."""
    norm, *parts = products
    h = x + mixed
    return h + gated(parts, norm(h))


def install(model: nn.Module, kernels: Kernels) -> None:
    """Put stand-ins where `kernels` have a use for them, in this model instance only.

    Earlier ones are replaced, and taken out where there is no use any more.
    """
    products = Products(kernels)
    replace(model, lambda child: child["plain"] if isinstance(child, RowsBlock) else child)
    shared = together(model, products) if kernels.replaces_stock(OP) else {}
    replace(model, lambda child: stand_in(child, products, shared.get(id(plain_of(child)))))
    replace(model, lambda child: block(child, products, shared))


def replace(model: nn.Module, change: Callable[[nn.Module], nn.Module]) -> None:
    """Put what `change` makes of a module in its place, in this model instance only."""

    def changes(_: nn.Module, __: str, child: Any) -> bool:
        return isinstance(child, nn.Module) and change(child) is not child

    model.update_modules(model.filter_and_map(nn.Module.valid_child_filter, change, changes))


def block(layer: Any, products: Products, shared: dict[int, "Shared"]) -> nn.Module:
    """A stand-in for a layer of `BLOCKS`; other modules themselves."""
    kind = type(layer)
    if f"{kind.__module__}.{kind.__qualname__}" not in BLOCKS:
        return layer
    mlp, norms = plain_of(layer.mlp), (layer.input_layernorm, layer.post_attention_layernorm)
    first = shared.get(id(plain_of(layer.self_attn[TOGETHER[0]])))
    if first is None or not is_swiglu(mlp) or layer.mlp is mlp:
        return layer
    if any(type(norm) is not nn.RMSNorm for norm in norms):
        return layer
    first.layers.follow(norms[0])
    parts = (mlp[name] for name in GATED)
    return RowsBlock(layer, first.layers, products.of(second_half, norms[1], *parts))


@dataclass(frozen=True, slots=True)
class Shared:
    """A linear layer's place in layers that share their rows."""

    layers: Together
    place: int


def together(model: nn.Module, products: Products) -> dict[int, Shared]:
    """The linear layers that share their rows with others, by id."""
    found: dict[int, Shared] = {}
    for module in model.modules():
        plains = [plain_of(module[name]) for name in TOGETHER if name in module]
        if len(plains) == len(TOGETHER) and all(type(plain) in LINEARS for plain in plains):
            layers = Together(products, plains)
            found |= {id(plain): Shared(layers, place) for place, plain in enumerate(plains)}
    return found


def unknown(model: nn.Module) -> tuple[str, ...]:
    """The classes of linear layers in a model that have no stand-in: they quantise their input."""
    return ("QQLinear",) if any(type(m) is nn.QQLinear for m in model.modules()) else ()


def plain_of(module: nn.Module) -> nn.Module:
    """The module itself, or what a stand-in holds."""
    return module["plain"] if isinstance(module, StandIn) else module


def stand_in(module: nn.Module, products: Products, shared: Shared | None = None) -> nn.Module:
    """What to run for a module: a stand-in, or the plain module itself.

    `shared` is a linear layer's place, if it has one.
    """
    plain: Any = plain_of(module)
    kind, kernels = type(plain), products.kernels
    if kernels.exact and (kind in SWITCHES or kind.__name__ == GATE):
        return RowByRow(plain)
    if not kernels.replaces_stock(OP):
        return plain
    if kind in LINEARS:
        if shared is not None:
            return RowsLinear(plain, partial(shared.layers.product, shared.place))
        return RowsLinear(plain, products.of(only, plain))
    if kind in EMBEDDINGS:
        return RowsEmbedding(plain, products)
    if is_swiglu(plain) and all(type(plain_of(plain[name])) in LINEARS for name in GATED):
        return RowsLinear(plain, products.of(gated, *(plain[name] for name in GATED)))
    return plain
