"""Linear layers that multiply a few rows by our kernels, in one model instance.

A stand-in takes the place of a module of MLX or mlx-lm, and holds it. It has the module's
attributes, and its parameters are one name deeper. In exact mode, gates of experts, and layers of
experts that no kernel supports, run row by row. The products of latent attention's heads stay as
they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.switch_layers import (
    QuantizedSwitchLinear,
    SwitchGLU,
    SwitchLinear,
    SwitchMLP,
)

from dflash_mlx.cpu.modules import is_swiglu
from dflash_mlx.kernels import grouped_experts, padded_rows
from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels
from dflash_mlx.kernels.grouped_experts import Experts
from dflash_mlx.kernels.small_m_qmm import OP, Weights
from dflash_mlx.kernels.source import recorded

from .parts import Wrapper

# Products of a few rows with the weights of MLX's modules, by our kernel or as MLX computes
# them.

ROWS = 16  # with more, the kernel would read the weights twice, and MLX's kernel reads them once
NAMES = ("weight", "scales", "biases", "bias")
Product = Callable[[mx.array], mx.array]  # x [..., K] -> [..., N]
FewRows = Callable[..., Any]  # rows -> their product; None if MLX should compute it
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Format:
    """The weights of a linear layer or embedding of MLX: shape, names of arrays, and packing.

    `eps` is set for the weights of an `nn.RMSNorm` only.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    group: int = 0
    bits: int = 0
    mode: str = "affine"
    eps: float | None = None

    @classmethod
    def of(cls, plain: Any) -> "Format":
        shape = plain["weight"].shape
        names = tuple(name for name in NAMES if name in plain)
        if isinstance(plain, nn.RMSNorm):
            return cls(shape, names, eps=plain.eps)
        if "scales" not in plain:
            return cls(shape, names)
        return cls(shape, names, plain.group_size, plain.bits, plain.mode)

    def weights(self, arrays: Sequence[mx.array]) -> Weights:
        """A module's `arrays`, in the order of `names`."""
        by_name = dict(zip(self.names, arrays, strict=True))
        return Weights(
            by_name["weight"],
            by_name.get("scales"),
            by_name.get("biases"),
            by_name.get("bias"),
            self.group,
            self.bits,
            self.mode,
        )


class Products:
    def __init__(self, kernels: Kernels):
        self.kernels = kernels
        most = max(ROWS, padded_rows.most_rows(kernels))
        self._least, self._most = (1, EXACT_ROWS) if kernels.exact else (2, most)
        self._recorded: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def of(self, function: Function, *modules: Any) -> FewRows:
        """Return a function of rows (x, *more) that calls `function(products, x, *more)`.

        x is [..., K]; `products` has one product for each module. Results have MLX's dtypes,
        and each call reads the modules' weights. The returned function gives None for many rows,
        and, except in exact mode, for one row: MLX is as fast there.
        """
        formats = tuple(Format.of(module) for module in modules)
        places = [(m, name) for m, f in zip(modules, formats, strict=True) for name in f.names]
        key = function, *formats
        if key not in self._recorded:

            def run(_: Any, rows: Sequence[mx.array], *arrays: mx.array) -> Any:
                return function(self._products(formats, arrays), *rows)

            self._recorded[key] = recorded(self.kernels.launcher, run)
        run_recorded = self._recorded[key]
        least = self._least
        most = self._most

        def product(*rows: mx.array) -> Any:
            if least <= rows[0].size // rows[0].shape[-1] <= most:
                return run_recorded(rows, *[module[name] for module, name in places])
            return None

        return product

    def of_experts(self, layer: SwitchGLU) -> FewRows:
        """Return a function of x [..., H] and the experts [..., T] of each row -> [..., T, H].

        It gives None for many rows, where MLX is faster, and, except in exact mode, for one row.
        """
        op = grouped_experts.OP
        kernels = self.kernels
        activation: Any = layer.activation
        modules = [layer[name] for name in EXPERTS]
        formats = tuple(Format.of(module) for module in modules)
        places = [(m, name) for m, f in zip(modules, formats, strict=True) for name in f.names]
        least, most = (1, EXACT_ROWS) if kernels.exact else (2, grouped_experts.BUCKETS[-1])
        always = kernels.references or kernels.exact
        known: dict[tuple[Any, ...], bool] = {}

        def experts(arrays: Sequence[mx.array]) -> Experts:
            up, gate, down = weights_of(formats, arrays)
            return Experts(up, gate, down, activation)

        def run(_: Any, x: mx.array, indices: mx.array, *arrays: mx.array) -> mx.array:
            return kernels(op, x, indices, experts(arrays))

        key = type(activation), *formats
        run_recorded = self._recorded.setdefault(key, recorded(kernels.launcher, run))

        def product(x: mx.array, indices: mx.array) -> mx.array | None:
            taken = indices.shape[-1]
            rows = indices.size // taken
            if not least <= rows <= most:
                return None
            arrays = [module[name] for module, name in places]
            size = rows, taken, x.dtype
            if size not in known:
                given = x, indices, experts(arrays)
                fewer = not grouped_experts.shared_by_mlx(*given[1:])
                known[size] = always or (fewer and kernels.launches(op, *given))
            return run_recorded(x, indices, *arrays) if known[size] else None

        return product

    def _products(self, formats: Sequence[Format], arrays: Sequence[mx.array]) -> list[Product]:
        products: list[Product] = []
        for form, weights in zip(formats, weights_of(formats, arrays), strict=True):
            if form.eps is not None:
                products.append(partial(normed, weights.values, form.eps))
            else:
                products.append(partial(multiply, self.kernels, weights))
        return products


def weights_of(formats: Sequence[Format], arrays: Sequence[mx.array]) -> list[Weights]:
    ends = [*accumulate(len(form.names) for form in formats)]
    return [
        form.weights(arrays[end - len(form.names) : end])
        for form, end in zip(formats, ends, strict=True)
    ]


def normed(weight: mx.array, eps: float, x: mx.array) -> mx.array:
    return mx.fast.rms_norm(x, weight, eps)


def multiply(kernels: Kernels, weights: Weights, x: mx.array) -> mx.array:
    """x [..., K] -> [..., N] by `kernels`, or as `nn.QuantizedLinear` and `nn.Linear` do it."""
    w = weights
    wide = weights.dtype or x.dtype
    rows = x if wide == x.dtype else x.astype(mx.result_type(wide, x.dtype))
    if (padding := padded_rows.chosen(kernels, rows, w)) is not None:
        return kernels(padded_rows.OP, rows, w, padding)
    if (out := kernels.attempt(OP, rows, w)) is not None:
        return out
    if w.scales is None:
        return x @ w.values.T if w.bias is None else mx.addmm(w.bias, x, w.values.T)
    out = mx.quantized_matmul(x, w.values, w.scales, w.biases, True, w.group, w.bits, w.mode)
    return out if w.bias is None else out + w.bias


LINEARS = (nn.Linear, nn.QuantizedLinear)
EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
SWITCHES = (SwitchGLU, SwitchMLP)
SWITCH_LINEARS = (SwitchLinear, QuantizedSwitchLinear)
TAKEN = ("num_experts_per_tok", "top_k_experts")  # names of the number of experts of a token
EXPERTS = ("up_proj", "gate_proj", "down_proj")
# Activations of experts that are functions of their arguments alone.
ACTIVATIONS = frozenset(
    {
        "mlx_lm.models.activations.SwigluOAI",
        "mlx_lm.models.gemma4_text.GeGLU",
        "mlx_lm.models.switch_layers.SwiGLU",
    }
)
DORA = "mlx_lm.tuner.dora"
ADAPTERS = frozenset({"mlx_lm.tuner.lora", DORA})
GATE = "MoEGate"  # mlx-lm's name for routers that multiply by a weight of their own
TOGETHER = ("q_proj", "k_proj", "v_proj")  # called in this order with the same rows
GATED = ("gate_proj", "up_proj", "down_proj")
# Layers whose code is: h = x + self_attn(input_layernorm(x)), then h + mlp(post_..._layernorm(h)).
BLOCKS = frozenset({"mlx_lm.models.llama.TransformerBlock", "mlx_lm.models.qwen3.TransformerBlock"})


class StandIn(Wrapper):
    """A stand-in of this module, which `install` puts in and takes out."""


class RowsLinear(StandIn):
    """A linear layer, SwiGLU or layer of experts that computes few rows by another function."""

    def __init__(self, plain: nn.Module, product: FewRows):
        super().__init__(plain)
        self._product = product

    def __call__(self, *arrays: mx.array) -> mx.array:
        """x [..., K] -> [..., N]; x [..., H] and each row's experts [..., T] -> [..., T, H]."""
        out = self._product(*arrays)
        return self["plain"](*arrays) if out is None else out


class RowsEmbedding(StandIn):
    """An `nn.Embedding` or `nn.QuantizedEmbedding`, whose table may also be the head."""

    def __init__(self, plain: nn.Module, products: Products):
        super().__init__(plain)
        self._product = products.of(single, plain)

    def __call__(self, ids: mx.array) -> mx.array:
        """Token ids [...] -> rows of the table [..., H]."""
        return self["plain"](ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., H] -> logits [..., V]."""
        out = self._product(x)
        return self["plain"].as_linear(x) if out is None else out


class RowsBlock(StandIn):
    """A layer of `BLOCKS` with a SwiGLU: one function before its attention, and one after it.

    `shared` are the projections that its attention begins with.
    """

    def __init__(self, plain: nn.Module, shared: "Together", second: FewRows):
        super().__init__(plain)
        self._shared = shared
        self._second = second

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
    """A module that computes rows one at a time, so that each has the bits of a row alone."""

    def __call__(self, *arrays: mx.array) -> Any:
        """Arrays [..., S, D] -> one array or a tuple of them, [..., S, ...]."""
        axis = arrays[0].ndim - 2
        rows = arrays[0].shape[axis]
        if not 1 < rows <= EXACT_ROWS:
            return self["plain"](*arrays)
        parts = [
            self["plain"](*(array[..., i : i + 1, :] for array in arrays)) for i in range(rows)
        ]
        if isinstance(parts[0], tuple):
            return tuple(mx.concatenate([*outputs], axis) for outputs in zip(*parts, strict=True))
        return mx.concatenate(parts, axis)


class Together:
    """Linear layers of one module that are called in this order with the same rows.

    The first call computes all products, and the later calls return theirs.
    """

    def __init__(self, products: Products, plains: Sequence[nn.Module]):
        self._products = products
        self._plains = plains
        self._run = products.of(several, *plains)
        self._first: FewRows | None = None
        self._last = len(plains) - 1
        self._rows: mx.array | None = None
        self._waiting: list[mx.array] = []

    def follow(self, norm: nn.RMSNorm) -> None:
        """Also compute the norm before the layers, see `normed`."""
        self._first = self._products.of(first_half, norm, *self._plains)

    def normed(self, x: mx.array) -> mx.array | None:
        """x [..., K] -> normed rows, and compute the products; None if MLX should do it."""
        outputs = None if self._first is None else self._first(x)
        if outputs is None:
            return None
        self._rows, *self._waiting = outputs
        return self._rows

    def product(self, place: int, x: mx.array) -> mx.array | None:
        """x [..., K] -> [..., N] of the layer at that place; None if MLX should compute it."""
        if self._rows is not x:
            outputs = self._run(x)
            if outputs is None:
                return None
            self._rows = x
            self._waiting = outputs
        out = self._waiting[place]
        if place == self._last:
            self._rows = None
            self._waiting = []
        return out


Shared = tuple[Together, int]  # layers that share their rows, and the place of one of them


def single(products: Sequence[Product], x: mx.array) -> mx.array:
    return products[0](x)


def several(products: Sequence[Product], x: mx.array) -> list[mx.array]:
    return [product(x) for product in products]


def gated(products: Sequence[Product], x: mx.array) -> mx.array:
    """SwiGLU: the gate, the up and the down projection."""
    gate, up, down = products
    return down(swiglu(gate(x), up(x)))


def first_half(products: Sequence[Product], x: mx.array) -> list[mx.array]:
    """A layer up to its attention: the normed rows, and their products."""
    norm, *parts = products
    rows = norm(x)
    return [rows, *several(parts, rows)]


def second_half(products: Sequence[Product], x: mx.array, mixed: mx.array) -> mx.array:
    """A layer after its attention, from its input `x` and the attention's output `mixed`."""
    norm, *parts = products
    h = x + mixed
    return h + gated(parts, norm(h))


def install(model: nn.Module, kernels: Kernels) -> None:
    """Put stand-ins into this model instance where `kernels` need them, replacing earlier ones."""
    products = Products(kernels)
    replace(model, lambda child: child["plain"] if isinstance(child, RowsBlock) else child)
    shared = together(model, products) if replaces_products(kernels) else {}
    replace(model, lambda child: stand_in(child, products, shared.get(id(plain_of(child)))))
    replace(model, lambda child: block(child, products, shared))


def replace(model: nn.Module, change: Callable[[nn.Module], nn.Module]) -> None:
    """Replace each module by `change(module)`, in this model instance only."""

    def changes(_: nn.Module, __: str, child: Any) -> bool:
        return isinstance(child, nn.Module) and change(child) is not child

    def is_child(module: Any, name: str, child: Any) -> bool:
        own = type(module).__module__ == DORA  # looks at the class of the layer that it wraps
        return not own and nn.Module.valid_child_filter(module, name, child)

    model.update_modules(model.filter_and_map(is_child, change, changes))


def block(layer: Any, products: Products, shared: dict[int, Shared]) -> nn.Module:
    """A stand-in for a layer of `BLOCKS`; any other layer is returned unchanged."""
    kind = type(layer)
    if f"{kind.__module__}.{kind.__qualname__}" not in BLOCKS:
        return layer
    mlp = plain_of(layer.mlp)
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    first, _ = shared.get(id(plain_of(layer.self_attn[TOGETHER[0]])), (None, 0))
    if first is None or not is_swiglu(mlp) or layer.mlp is mlp:
        return layer
    if any(type(norm) is not nn.RMSNorm for norm in norms):
        return layer
    first.follow(norms[0])
    parts = (mlp[name] for name in GATED)
    return RowsBlock(layer, first, products.of(second_half, norms[1], *parts))


def together(model: nn.Module, products: Products) -> dict[int, Shared]:
    """The linear layers that share their rows with others, by id."""
    shared: dict[int, Shared] = {}
    for module in model.modules():
        plains = [plain_of(module[name]) for name in TOGETHER if name in module]
        if len(plains) == len(TOGETHER) and all(type(plain) in LINEARS for plain in plains):
            layers = Together(products, plains)
            shared |= {id(plain): (layers, place) for place, plain in enumerate(plains)}
    return shared


def unknown(model: nn.Module) -> tuple[str, ...]:
    """The classes of linear layers in a model that have no stand-in, so that none is exact.

    These are layers that quantise their input, and the adapters' of mlx-lm.
    """
    kinds = {type(module) for module in model.modules()}
    found = (kind for kind in kinds if kind is nn.QQLinear or kind.__module__ in ADAPTERS)
    return tuple(sorted(kind.__name__ for kind in found))


def has_grouped_experts(module: Any) -> bool:
    if type(module) is not SwitchGLU:
        return False
    kind = type(module.activation)
    known = f"{kind.__module__}.{kind.__qualname__}" in ACTIVATIONS
    return known and all(type(module[name]) in SWITCH_LINEARS for name in EXPERTS)


def plain_of(module: nn.Module) -> nn.Module:
    return module["plain"] if isinstance(module, StandIn) else module


def replaces_products(kernels: Kernels) -> bool:
    """Whether products of few rows may be computed otherwise than by MLX's modules."""
    return kernels.replaces_stock(OP) or padded_rows.most_rows(kernels) > 0


def stand_in(module: nn.Module, products: Products, shared: Shared | None = None) -> nn.Module:
    """A stand-in for a module, or the module itself. `shared`: its place, if it shares its rows."""
    plain: Any = plain_of(module)
    kind = type(plain)
    kernels = products.kernels
    if kernels.replaces_stock(grouped_experts.OP) and has_grouped_experts(plain):
        return RowsLinear(plain, products.of_experts(plain))
    if kernels.exact and (kind in SWITCHES or kind.__name__ == GATE):
        return RowByRow(plain)
    if not replaces_products(kernels):
        return plain
    if kind in LINEARS:
        if shared is not None:
            layers, place = shared
            return RowsLinear(plain, partial(layers.product, place))
        return RowsLinear(plain, products.of(single, plain))
    if kind in EMBEDDINGS:
        return RowsEmbedding(plain, products)
    if is_swiglu(plain) and all(type(plain_of(plain[name])) in LINEARS for name in GATED):
        return RowsLinear(plain, products.of(gated, *(plain[name] for name in GATED)))
    return plain
