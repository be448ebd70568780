"""Products of a few rows with the weights of MLX's modules, by our kernel or as MLX computes them.

What modules make of the same rows is one function of the rows and of all their weights. Modules of
equal formats share it, so MLX has to trace it once for a model and a number of rows. Knows modules
of MLX, not where a model has them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels
from dflash_mlx.kernels.small_m_qmm import OP, Weights
from dflash_mlx.kernels.source import recorded

ROWS = 16  # beyond, the kernel would read the weights twice, and MLX's own reads them once
NAMES = ("weight", "scales", "biases", "bias")
Product = Callable[[mx.array], mx.array]  # x [..., K] -> [..., N]
Found = Callable[[mx.array], Any]  # None where MLX is to compute it
Function = Callable[[Sequence[Product], mx.array], Any]


@dataclass(frozen=True, slots=True)
class Format:
    """The weights of one of MLX's linear layers or embeddings: shape, arrays, and how packed."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    group: int = 0
    bits: int = 0
    mode: str = "affine"

    @classmethod
    def of(cls, plain: Any) -> "Format":
        """That of a module."""
        shape, names = plain["weight"].shape, tuple(name for name in NAMES if name in plain)
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
        """`function(products, x)` of x [..., K], with the product of each of some modules.

        They have the dtypes that MLX gives. Each call reads the weights that the modules have then.
        None for a single row, which MLX does as well, and for many; with exactness only for many.
        """
        formats = tuple(Format.of(module) for module in modules)
        places = [(m, name) for m, f in zip(modules, formats, strict=True) for name in f.names]
        key = function, *formats
        if key not in self._found:

            def run(_: Any, x: mx.array, *arrays: mx.array) -> Any:
                return function(self._products(formats, arrays), x)

            self._found[key] = recorded(self.kernels.launcher, run)
        found, least, most = self._found[key], self._least, self._most

        def product(x: mx.array) -> Any:
            if least <= x.size // x.shape[-1] <= most:
                return found(x, *[module[name] for module, name in places])
            return None

        return product

    def _products(self, formats: Sequence[Format], arrays: Sequence[mx.array]) -> list[Product]:
        products: list[Product] = []
        for form in formats:
            weights, arrays = form.weights(arrays[: len(form.names)]), arrays[len(form.names) :]
            products.append(lambda x, weights=weights: multiply(self.kernels, x, weights))
        return products


def multiply(kernels: Kernels, x: mx.array, weights: Weights) -> mx.array:
    """x [..., K] -> [..., N] by `kernels`, or as `nn.QuantizedLinear` and `nn.Linear` do it."""
    w, wide = weights, weights.dtype or x.dtype
    rows = x if wide == x.dtype else x.astype(mx.result_type(wide, x.dtype))
    if (out := kernels.attempt(OP, rows, w)) is not None:
        return out
    if w.scales is None:
        return x @ w.values.T if w.bias is None else mx.addmm(w.bias, x, w.values.T)
    out = mx.quantized_matmul(x, w.values, w.scales, w.biases, True, w.group, w.bits, w.mode)
    return out if w.bias is None else out + w.bias
