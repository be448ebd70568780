"""exp for MLX's CPU backend, whose own is not vectorised on x86.

Made of additions, products and a shift of the exponent: several times faster over many numbers, and
more precise (relative error below 3e-7; MLX: 2e-6). `exp` has no gradient, `softmax` has.
"""

from typing import Any

import mlx.core as mx

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the sum is ln 2; the first has few bits
ROUND = 1.5 * 2**23 + 127  # x + ROUND holds round(x) plus the exponent bias in its low bits
# Minimax polynomial of e^r for |r| <= ln(2) / 2, relative error 8e-8; highest power first.
COEFFICIENTS = (0.008297583569, 0.0419158768, 0.1666757836, 0.4999889047, 0.9999996901, 1.000000072)


@mx.compile
def _parts(x: mx.array) -> tuple[mx.array, mx.array]:
    """x as r + k ln(2): r, and k in the low bits of a float."""
    shifted = x * LOG2_E + ROUND
    whole = shifted - ROUND
    return (x - whole * LN2_HIGH) - whole * LN2_LOW, shifted


@mx.compile
def _power(rest: mx.array) -> mx.array:
    """e^r."""
    power = rest * COEFFICIENTS[0] + COEFFICIENTS[1]
    for factor in COEFFICIENTS[2:]:
        power = power * rest + factor
    return power


@mx.compile
def _scaled(power: mx.array, shifted: mx.array) -> mx.array:
    """e^r 2^k."""
    two = mx.view(mx.left_shift(mx.view(shifted, mx.int32), 23), mx.float32)  # 2^k
    return power * two


def exp(x: mx.array) -> mx.array:
    """e^x, float32, of x within -87 and 87.

    In three parts: where MLX compiles them as one, large arrays take two to five times as long.
    """
    rest, shifted = _parts(x)
    return _scaled(_power(rest), shifted)


def softmax(x: mx.array) -> mx.array:
    """Softmax over the last axis of float32 numbers, for MLX's CPU backend.

    Shares below 1e-37 are 1e-38.
    """
    found: Any = _softmax(x)
    return found


@mx.custom_function
def _softmax(x: mx.array) -> mx.array:
    shares = exp(mx.maximum(x - mx.max(x, axis=-1, keepdims=True), -87.0))
    return shares / mx.sum(shares, axis=-1, keepdims=True)


@_softmax.vjp
def _softmax_slope(primal: mx.array, cotangent: mx.array, shares: mx.array) -> mx.array:
    slope = shares * cotangent
    return slope - shares * mx.sum(slope, axis=-1, keepdims=True)
