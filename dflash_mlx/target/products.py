"""Products of a few rows with the weights of MLX's modules, by our kernel or as MLX computes them.

What modules make of the same rows is one function of the rows and of all their weights. Modules of
equal formats share it, so MLX has to trace it once for a model and a number of rows. Knows modules
of MLX, not where a model has them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn

from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels
from dflash_mlx.kernels.small_m_qmm import OP, Weights
from dflash_mlx.kernels.source import recorded

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
