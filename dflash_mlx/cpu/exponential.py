"""exp for MLX's CPU backend, whose own is not vectorised on x86.

Made of additions, products and a shift of the exponent: several times faster over many numbers, and
more precise (relative error below 3e-7; MLX: 2e-6). Has no gradient.
"""

import mlx.core as mx

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the sum is ln 2; the first has few bits
ROUND = 1.5 * 2**23 + 127  # x + ROUND holds round(x) plus the exponent bias in its low bits
# Minimax polynomial of e^r for |r| <= ln(2) / 2, relative error 8e-8; highest power first.
COEFFICIENTS = (0.008297583569, 0.0419158768, 0.1666757836, 0.4999889047, 0.9999996901, 1.000000072)


def exp(x: mx.array) -> mx.array:
    """e^x, float32, of x within -87 and 87; fast only within a compiled function."""
    shifted = x * LOG2_E + ROUND
    whole = shifted - ROUND
    rest = (x - whole * LN2_HIGH) - whole * LN2_LOW
    power = rest * COEFFICIENTS[0] + COEFFICIENTS[1]
    for factor in COEFFICIENTS[2:]:
        power = power * rest + factor
    two = mx.view(mx.left_shift(mx.view(shifted, mx.int32), 23), mx.float32)  # 2^whole
    return power * two


@mx.compile
def below(x: mx.array, most: mx.array) -> mx.array:
    """e^(x - most) of x <= most; below 1e-37 it is 1e-38."""
    return exp(mx.maximum(x - most, -87.0))


def softmax(x: mx.array) -> mx.array:
    """Softmax over the last axis of float32 numbers, without a gradient; for MLX's CPU backend."""
    shares = below(x, mx.max(x, axis=-1, keepdims=True))
    return shares / mx.sum(shares, axis=-1, keepdims=True)
