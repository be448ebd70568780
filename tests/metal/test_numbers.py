"""Numbers: half and bfloat round as MLX's do, literals are float, vectors and their swizzles."""

import mlx.core as mx
import numpy as np
import pytest

from .emulator import Refused, run
from .kit import kernel

RNG = np.random.default_rng(4)


def bits(array: mx.array) -> np.ndarray:
    return np.array(array.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[array.dtype.size]))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_narrow_arithmetic_rounds_after_each_operation(dtype: mx.Dtype) -> None:
    """`a * b + c` in two roundings, as MLX's own ops of this type give it, bit for bit."""
    n = 512
    raw = [mx.array(RNG.normal(size=n) * 10.0 ** RNG.integers(-6, 5, n)) for _ in range(3)]
    a, b, c = (x.astype(mx.float32).astype(dtype) for x in raw)
    body = """
    uint i = thread_position_in_grid.x;
    T sum = a[i] + b[i], product = a[i] * b[i];
    o[i] = sum; p[i] = product; q[i] = product + c[i]; r[i] = a[i] / b[i]; s[i] = -a[i] - c[i];
    t[i] = static_cast<T>(f[i]);
    u[i] = float(a[i]) * f[i];
    """
    names = {n: ((n_,), dtype) for n, n_ in zip("opqrst", [n] * 6, strict=True)}
    fn = kernel(body, "a b c f", {**names, "u": ((n,), mx.float32)}, n, template=[("T", dtype)])
    f = mx.array(RNG.normal(size=n).astype(np.float32) * 10.0 ** RNG.integers(-9, 6, n))
    f = mx.where(mx.arange(n) == 3, float("nan"), mx.where(mx.arange(n) == 4, float("inf"), f))
    f = f.astype(mx.float32)
    got = run(fn, a, b, c, f).outputs
    wanted = [a + b, a * b, a * b + c, a / b, -a - c, f.astype(dtype), a.astype(mx.float32) * f]
    for name, x, y in zip("opqrstu", got, wanted, strict=True):
        nan = mx.isnan(y)
        assert mx.array_equal(mx.isnan(x), nan), name
        zero = mx.array(0, x.dtype)
        x, y = mx.where(nan, zero, x), mx.where(nan, zero, y)
        np.testing.assert_array_equal(bits(x), bits(y), name)


def test_literals_are_float_and_types_widen_as_in_metal() -> None:
    """`0.1` is a float; half with float is float; bfloat with bfloat stays bfloat."""
    body = """
    static_assert(is_same_v<decltype(0.1), float>);
    static_assert(is_same_v<decltype(h[0] * h[0]), half>);
    static_assert(is_same_v<decltype(h[0] * 2.0), float>);
    static_assert(is_same_v<decltype(h[0] * 2.0h), half>);
    static_assert(is_same_v<decltype(b[0] * b[0]), bfloat>);
    static_assert(is_same_v<decltype(b[0] * 2), bfloat>);
    static_assert(is_same_v<decltype(b[0] * 2.0f), float>);
    static_assert(is_same_v<decltype(b[0] < b[0]), bool>);
    half k = thread_position_in_grid.x == 0 ? h[0] : 0.0;
    o[0] = 0.1 + 0.2;
    o[1] = k;
    o[2] = float(bfloat(1.00390625f)) + Limits<half>::max;
    o[3] = as_type<float>(0x40490fdbu) + ceildiv(7, 2) + log1p(0.0f);
    """
    fn = kernel(body, "h b", {"o": ((4,), mx.float32)}, 1)
    o = np.array(run(fn, mx.ones(8, mx.float16), mx.ones(8, mx.bfloat16)).outputs[0])
    expected = [np.float32(0.1) + np.float32(0.2), 1.0, np.inf, np.float32(np.pi) + 4]
    np.testing.assert_array_equal(o, np.array(expected, np.float32))


@pytest.mark.parametrize(
    "line",
    [
        "bfloat y = 1.0f * b[0]; o[0] = y;",  # narrowing needs a cast
        "o[0] = float(h[0] + b[0]);",  # half and bfloat do not mix
        "half y = b[0]; o[0] = y;",
        "o[0] = max(1, 2.0f);",  # ambiguous
        "o[0] = min(uint(1), int(2));",
        "float2 v = float2(1, 2, 3); o[0] = v.x;",
        "float2 v = half2(1, 2); o[0] = v.x;",  # vectors convert by hand only
        "o[0] = std::max(1.0f, 2.0f);",
        'printf("%f", o[0]);',
        "o[0] = sqrt_of(2.0f);",
        "o[0] = as_type<float>(h[0]);",
        "o[0] = float3(1, 2, 3).xxz.x;",  # a swizzle that is not emulated
        "simdgroup_matrix<float, 4, 4> m;",
        "threadgroup float s = 1.0f; o[0] = s;",
    ],
)
def test_what_metal_refuses_is_refused(line: str) -> None:
    """A compile error, never a guess. What is merely not emulated is refused as well."""
    with pytest.raises(Refused):
        run(
            kernel(line, "h b", {"o": ((4,), mx.float32)}, 1),
            mx.ones(8, mx.float16),
            mx.ones(8, mx.bfloat16),
        )


def test_vectors() -> None:
    """Construction, swizzles read and written, arithmetic, comparison, packed vectors."""
    body = """
    float4 v = float4(a[0], a[1], a[2], a[3]);
    float4 w = float4(v.xy, 5, 6), x = float4(7.0f);
    float4 r = v.wzyx; o[0] = r.x; o[1] = float2(v.yx).y;
    o[2] = (v * 2 + w).z; o[3] = dot(v.xyz, v.zyx);
    v.xy = v.yx; v.zw += float2(10, 20); v[0] *= 3;
    o[4] = v.x; o[5] = v.y; o[6] = v.z; o[7] = v.w;
    half2 h = half2(w.zw); o[8] = h.x * h.y;
    o[9] = all(w.xy == float2(a[0], a[1])); o[10] = any(x < w); o[11] = select(1.0f, 2.0f, true);
    const device float4* wide = (const device float4*)a; o[12] = wide[1].y;
    packed_float3 p = packed_float3(float3(1, 2, 3)); o[13] = p[2] + sizeof(p) + sizeof(float3);
    o[14] = max(v, w).x; o[15] = clamp(float2(-1, 9), float2(0, 0), float2(5, 5)).y;
    uint4 u = uint4(1, 2, 3, 4) << 2; o[16] = u.w & 0x1f; o[17] = (uchar4(250) + uchar4(10)).x;
    uint2 t = as_type<uint2>(0x0000000200000001ul); o[18] = t.y;
    o[19] = vec<float, 2>(1, 2).g; bfloat4 bb = bfloat4(v); o[20] = float(bb.x);
    ushort2 sh = as_type<ushort2>(0x00030002u); o[21] = sh.y; o[22] = float4(half4(0.1h)).x;
    bfloat z = r.x > 0 ? bb.x : 0; o[22] += float(z) - 6; z += 1;
    o[22] += z - 7; o[22] += int(z) - z;
    o[23] = as_type<uint>(as_type<uchar4>(7u)) + length_squared(v.xy);
    """
    header = "inline float length_squared(float2 v) { return dot(v, v); }\n"
    a = np.arange(1, 9, dtype=np.float32)
    fn = kernel(body, "a", {"o": ((24,), mx.float32)}, 1, header=header)
    o = np.array(run(fn, mx.array(a)).outputs[0])
    half = float(np.float16(0.1))
    expected = [4, 1, 11, 10, 6, 1, 13, 24, 30, 1, 0, 2, 6, 3 + 12 + 16, 6, 5, 16, 4, 2, 2, 6, 3]
    np.testing.assert_array_equal(o, np.array([*expected, half, 7 + 37], np.float32))


def test_math() -> None:
    """Each function within a few last bits of numpy, also under `fast::` and `precise::`."""
    functions = {
        "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
        "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "trunc": np.trunc, "fabs": np.fabs,
        "abs": np.abs, "sign": np.sign, "log10": np.log10, "atan": np.arctan,
        "round": lambda x: np.floor(x + 0.5), "saturate": lambda x: np.clip(x, 0, 1),
        "fract": lambda x: x - np.floor(x),
    }  # fmt: skip
    lines = [f"o{i}[i] = metal::{name}(a[i]);" for i, name in enumerate(functions)]
    lines += ["p[i] = fast::exp(a[i]) + precise::exp(a[i]) - metal::fma(a[i], 2.0, 1.0);"]
    outputs = {f"o{i}": ((64,), mx.float32) for i in range(len(functions))}
    body = "uint i = thread_position_in_grid.x;\n" + "\n".join(lines)
    a = RNG.uniform(0.01, 4, 64).astype(np.float32)
    got = run(kernel(body, "a", {**outputs, "p": ((64,), mx.float32)}, 64), mx.array(a)).outputs
    for (name, f), x in zip(functions.items(), got[:-1], strict=True):
        np.testing.assert_allclose(np.array(x), f(a.astype(np.float64)), 1e-6, 1e-6, err_msg=name)
    np.testing.assert_allclose(np.array(got[-1]), 2 * np.exp(a) - 2 * a - 1, 1e-5, 1e-5)


def test_special_values_and_integers() -> None:
    """Infinities, NaN and the integer functions: one right answer each."""
    body = """
    float inf = a[0], nan = a[1];
    o[0] = exp(-inf); o[1] = max(nan, 1.0f); o[2] = min(2.0f, nan); o[3] = isnan(nan);
    o[4] = isinf(inf) + isfinite(inf); o[5] = max(-inf, -3.0f); o[6] = log(0.0f) == -inf;
    o[7] = popcount(0xf0fu); o[8] = clz(1u); o[9] = ctz(8u); o[10] = extract_bits(0xabcdu, 4, 8);
    o[11] = mulhi(0x80000000u, 6u); o[12] = reverse_bits(1u) == 0x80000000u; o[13] = max(2, 7);
    o[14] = clamp(9, 0, 5); o[15] = rotate(0x80000001u, 1); o[16] = insert_bits(0u, 3u, 4, 2);
    o[17] = fmod(-7.5f, 2.0f); o[18] = copysign(3.0f, -0.0f); o[19] = pow(2.0f, 10.0f);
    o[20] = abs(-7); o[21] = step(1.0f, 0.5f); o[22] = INFINITY == inf; o[23] = M_PI_F > 3.14;
    """
    fn = kernel(body, "a", {"o": ((24,), mx.float32)}, 1)
    o = np.array(run(fn, mx.array([float("inf"), float("nan")])).outputs[0])
    expected = [0, 1, 2, 1, 1, -3, 1, 8, 31, 3, 0xBC, 3, 1, 7, 5, 3, 48, -1.5, -3, 1024, 7, 0, 1, 1]
    np.testing.assert_array_equal(o, np.array(expected, np.float32))
