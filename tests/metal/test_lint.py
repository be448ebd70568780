"""The lint finds what Apple's compiler would refuse, and leaves right kernels alone."""

import mlx.core as mx
import pytest

from .conftest import NEEDED
from .kit import kernel
from .lint import find_clang, lint, types, words
from .trace import Launch, trace

A = "uint i = thread_position_in_grid.x;\n"
ARRAYS = (mx.ones(32), mx.ones(32, mx.float16), mx.ones(4), mx.ones(32, mx.bfloat16))


def launch(body: str, header: str = "") -> Launch:
    """`a` float and `h` half in device memory, `c` in constant memory, `b` bfloat."""
    outputs = {"o": ((32,), mx.float32), "q": ((32,), mx.bfloat16)}
    fn = kernel(A + body, "a h c b", outputs, header=header)
    return trace(fn, *ARRAYS)[0]


def test_clang_is_there_where_it_must_be() -> None:
    """Without clang the lint is half blind; CI may not skip it."""
    if not find_clang():
        assert not NEEDED, "the lint needs clang: sudo apt-get install -y clang"
        pytest.skip("no clang: the lint sees words only")


BY_WORDS = {
    "const pointer": ("const float* p = a; o[i] = p[i];", ""),
    "template parameter": (
        "o[i] = f(a, i);",
        "template <typename T> T f(const T* x, int i) { return x[i]; }\n",
    ),
    "double": ("double x = a[i]; o[i] = x;", ""),
    "std": ("o[i] = std::max(a[i], 0.0f);", ""),
    "lambda": ("auto f = [&](float x) { return x; }; o[i] = f(a[i]);", ""),
    "keyword as a name": ("float half = a[i]; o[i] = half;", ""),
    "program scope": ("o[i] = table[i % 2];", "const float table[2] = {1, 2};\n"),
    "comment at the end of the header": ("o[i] = 1;", "// a helper"),
}


@pytest.mark.parametrize("name", BY_WORDS)
def test_words(name: str) -> None:
    assert words(launch(*BY_WORDS[name]))


BY_TYPES = {
    "device to threadgroup": ("threadgroup float s[4]; device float* p = s; p[0] = 1;", ""),
    "constant to device": (
        "o[i] = f(c);",
        "inline float f(const device float* p) { return *p; }\n",
    ),
    "write to an input": ("a[i] = 1; o[i] = 1;", ""),
    "template over two spaces": (
        "threadgroup float s[4]; f(s, o);",
        "template <typename T> void f(threadgroup T* p, threadgroup T* q) { p[0] = q[0]; }\n",
    ),
}


@pytest.mark.skipif(not find_clang(), reason="no clang")
@pytest.mark.parametrize("name", BY_TYPES)
def test_types(name: str) -> None:
    """Found by clang, on the right line where the fault is in the body."""
    found = types(launch(*BY_TYPES[name]))
    assert found
    assert not found[0].startswith("0:"), found


CLEAN = {
    "spaces": (
        "const device float4* v = (const device float4*)a; thread float* p = nullptr;\n"
        "float x[4]; thread float& r = x[0]; r = 1; p = x; o[i] = v[i / 4].x + p[0] + c[1];\n"
        "o[i] += f(v) + g(a) + g(c);",
        "inline float f(const device float4* v) { return v[0].y; }\n"
        "inline float g(const device float* v) { return v[0]; }\n"
        "inline float g(const constant float* v) { return v[0]; }\n",
    ),
    "narrow types": (
        "bfloat x = b[i] * b[i] + bfloat(a[i]); q[i] = x;\n"
        "half y = h[i] * 2.0h; o[i] = x + float(y); q[i] = i < 4 ? b[i] : bfloat(0.0f);",
        "",
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_right_code_is_left_alone(name: str) -> None:
    assert lint(launch(*CLEAN[name])) == []
