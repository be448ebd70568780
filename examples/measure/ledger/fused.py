"""Patterns for fold.py: the functions that are one kernel each on a GPU.

They are those of `mx.fast`, the compiled functions of MLX and mlx-lm that targets and drafters
call, and mlx-lm's recurrence. `gated_delta` depends on the number of rows, because it unrolls the
steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import precise_swiglu, swiglu, swiglu_oai
from mlx_lm.models.gated_delta import compute_g, gated_delta_ops
from mlx_lm.models.gemma4_text import geglu, logit_softcap

from .fold import Pattern
from .layout import VECTOR_ROWS

ATTENTION = "ScaledDotProductAttention"
VECTOR_DIMS, FULL_DIMS = (64, 96, 128, 256), (64, 80, 128)
VECTOR_QUERIES = 32


def small(*shape: int, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    """An example array."""
    return mx.zeros(shape, dtype)


def has_attention(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether MLX 0.32 has an attention kernel for queries, keys and values of these shapes.

    Up to 8 rows need its vector kernel, which allows at most 32 queries per head of keys. More rows
    need its full kernel. Otherwise MLX computes attention with products and a softmax.
    """
    (_, heads, rows, dim), keys = shapes[0], shapes[1]
    if rows <= VECTOR_ROWS:
        return dim in VECTOR_DIMS and rows * heads // keys[1] <= VECTOR_QUERIES
    return dim in FULL_DIMS


def attention() -> Iterator[Pattern]:
    """`mx.fast.scaled_dot_product_attention` with each kind of mask, with and without sinks."""
    fed = [small(1, 4, 3, 32), small(1, 2, 8, 32), small(1, 2, 8, 32)]
    mask, sinks = small(3, 8, dtype=mx.bool_), small(4)
    for kind, sunk in product((None, "causal", "array"), (False, True)):

        def run(
            q: mx.array, k: mx.array, v: mx.array, *more: mx.array, kind: str | None = kind
        ) -> list[mx.array]:
            given = iter(more)
            rule = next(given) if kind == "array" else kind
            return [
                mx.fast.scaled_dot_product_attention(
                    q, k, v, scale=0.5, mask=rule, sinks=next(given, None)
                )
            ]

        arrays = [*fed, *[mask][: kind == "array"], *[sinks][:sunk]]
        yield Pattern.of(ATTENTION, run, *arrays, fits=has_attention)


def ropes() -> Iterator[Pattern]:
    """`mx.fast.rope` of all or some elements, by base or frequencies, at one or several offsets."""
    x, offsets = small(3, 4, 2, 64), small(3, dtype=mx.int32)
    for dims, by_rates, several in product((32, 64), (False, True), (False, True)):

        def run(
            x: mx.array, *more: mx.array, dims: int = dims, by_rates: bool = by_rates
        ) -> list[mx.array]:
            given = iter(more)
            rates = next(given) if by_rates else None
            return [
                mx.fast.rope(
                    x,
                    dims,
                    traditional=False,
                    base=None if by_rates else 1e4,
                    scale=1.0,
                    offset=next(given, 5),
                    freqs=rates,
                )
            ]

        rates = small(dims // 2, dtype=mx.float32)
        name = "RoPE" if dims == x.shape[-1] else "PartialRoPE"
        yield Pattern.of(name, run, x, *[rates][:by_rates], *[offsets][:several])


def norms() -> Iterator[Pattern]:
    """`mx.fast.rms_norm` with and without weights. A product with a scalar is none of a weight."""
    x, weight = small(1, 3, 8), small(8)

    def fits(shapes: Sequence[tuple[int, ...]]) -> bool:
        return shapes[1] == shapes[0][-1:]

    yield Pattern.of("RMSNorm", lambda x, w: [mx.fast.rms_norm(x, w, 1e-5)], x, weight, fits=fits)
    yield Pattern.of("RMSNorm", lambda x: [mx.fast.rms_norm(x, None, 1e-5)], x)


def compiled() -> Iterator[Pattern]:
    """Compiled functions, the longer ones first."""
    name, x, y, h = "Compiled", small(1, 3, 8), small(1, 3, 8), small(1, 3, 8)
    heads = small(8)
    yield Pattern.of(name, lambda a, b: [geglu(a, b)], x, y)
    yield Pattern.of(name, lambda a, b: [swiglu_oai(a, b)], x, y)
    yield Pattern.of(name, lambda h, a, b: [precise_swiglu(h, a, b)], h, x, y)
    yield Pattern.of(name, lambda g, a, b: [compute_g(g, a, b)], heads, x, heads)
    yield Pattern.of(name, lambda x: [logit_softcap(30.0, x)], x)
    yield Pattern.of(name, lambda a, b: [swiglu(a, b)], x, y)
    yield Pattern.of(name, lambda x: [nn.silu(x)], x)


def tables() -> Iterator[Pattern]:
    """Dequantised rows of a quantised table, which are one kernel."""
    packed, scale = mx.zeros((3, 8), mx.uint32), small(3, 1)
    yield Pattern.of(
        "Dequantize", lambda w, s, b: [mx.dequantize(w, s, b, 64, 4)], packed, scale, scale
    )


@cache
def gated_delta(rows: int) -> tuple[Pattern, ...]:
    """mlx-lm's recurrence over `rows` rows, one kernel with Metal; and its state alone."""
    q, v, state = small(1, rows, 2, 4), small(1, rows, 4, 4), small(1, 4, 4, 4, dtype=mx.float32)
    fed = q, q, v, *(small(1, rows, 4, dtype=mx.float32) for _ in range(2)), state
    return (
        Pattern.of("GatedDelta", lambda *fed: list(gated_delta_ops(*fed)), *fed),
        Pattern.of("GatedDelta", lambda *fed: [gated_delta_ops(*fed)[1]], *fed),
    )


@cache
def common() -> tuple[Pattern, ...]:
    """All patterns except recurrences, the largest first."""
    return (*attention(), *ropes(), *norms(), *tables(), *compiled())


def patterns(rows: Iterable[int]) -> tuple[Pattern, ...]:
    """All patterns, with recurrences over these numbers of rows; the largest first."""
    deltas = (one for count in sorted({*rows} - {0}, reverse=True) for one in gated_delta(count))
    return (*deltas, *common())
