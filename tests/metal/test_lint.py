"""The lint finds what Apple's compiler would refuse, and leaves right kernels alone."""

import mlx.core as mx
import pytest

from .conftest import NEEDED
from .kit import ATOMICS, ATTRIBUTES, MATRIX, kernel
from .lint import find_clang, lint, types, words
from .peers import LOSSES, gated_delta_inputs, with_kernels
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
    "pointer": ("float* p = 0; o[i] = p[0];", ""),
    "const pointer": ("const float* p = a; o[i] = p[i];", ""),
    "vector pointer": ("o[i] = ((const float4*)a)[i].x;", ""),
    "cast": ("o[i] = *reinterpret_cast<const uint*>(a + i);", ""),
    "reference": ("o[i] = f(a[i]);", "inline float f(const float& x) { return x; }\n"),
    "parameter": ("o[i] = f(a, i);", "inline float f(const float* x, int i) { return x[i]; }\n"),
    "template parameter": (
        "o[i] = f(a, i);",
        "template <typename T> T f(const T* x, int i) { return x[i]; }\n",
    ),
    "member": ("S s = {a}; o[i] = s.p[i];", "struct S { const float* p; };\n"),
    "returned": ("o[i] = f(a)[i];", "inline const float* f(const device float* x) { return x; }\n"),
    "void pointer": ("device float* p = o; void* v = p; o[i] = 1;", ""),
    "recursion": ("o[i] = f(3);", "inline int f(int n) { return n ? f(n - 1) : 0; }\n"),
    "mutual recursion": (
        "o[i] = f(3);",
        "int g(int n);\ninline int f(int n) { return g(n); }\nint g(int n) { return f(n); }\n",
    ),
    "double": ("double x = a[i]; o[i] = x;", ""),
    "std": ("o[i] = std::max(a[i], 0.0f);", ""),
    "printf": ('printf("%d", i); o[i] = 1;', ""),
    "goto": ("again: if (o[i] > 1) goto again;", ""),
    "lambda": ("auto f = [&](float x) { return x; }; o[i] = f(a[i]);", ""),
    "lambda without capture": ("o[i] = sum([](float x) { return x; });", ""),
    "new": ("device float* p = new float[4]; o[i] = 1;", ""),
    "throw": ("if (i > 40) throw 1; o[i] = 1;", ""),
    "virtual": ("o[i] = 1;", "struct S { virtual int f() { return 1; } };\n"),
    "keyword as a name": ("float half = a[i]; o[i] = half;", ""),
    "another keyword": ("uint device = i; o[device] = 1;", ""),
    "program scope": ("o[i] = table[i % 2];", "const float table[2] = {1, 2};\n"),
    "constexpr at program scope": ("o[i] = N;", "constexpr int N = 4;\n"),
    "static member": ("o[i] = S::n;", "struct S { static constexpr int n = 4; };\n"),
    "comment at the end of the header": ("o[i] = 1;", "// a helper"),
}


@pytest.mark.parametrize("name", BY_WORDS)
def test_words(name: str) -> None:
    assert words(launch(*BY_WORDS[name]))


BY_TYPES = {
    "device to threadgroup": ("threadgroup float s[4]; device float* p = s; p[0] = 1;", ""),
    "threadgroup to device": (
        "threadgroup float s[4]; f(s); o[i] = s[0];",
        "inline void f(device float* p) { p[0] = 1; }\n",
    ),
    "constant to device": (
        "o[i] = f(c);",
        "inline float f(const device float* p) { return *p; }\n",
    ),
    "device to constant": ("o[i] = f(a);", "inline float f(constant float* p) { return *p; }\n"),
    "local to device": ("float x[4]; device float* p = x; o[i] = p[0];", ""),
    "device to local": ("thread float* p = o; o[i] = p[0];", ""),
    "cast between spaces": ("threadgroup float s[4]; o[i] = ((device float*)s)[0];", ""),
    "dropped const": ("device float* p = a; o[i] = p[0];", ""),
    "write to an input": ("a[i] = 1; o[i] = 1;", ""),
    "write to constant memory": ("c[0] = 1; o[i] = 1;", ""),
    "reference to another space": ("thread float& x = o[i]; x = 1;", ""),
    "template over two spaces": (
        "threadgroup float s[4]; f(s, o);",
        "template <typename T> void f(threadgroup T* p, threadgroup T* q) { p[0] = q[0]; }\n",
    ),
    "simdgroup_load from constant": ("simdgroup_float8x8 m; simdgroup_load(m, c, 8);", ""),
    "narrowing to bfloat": ("q[i] = a[i];", ""),
    "half with bfloat": ("o[i] = float(h[i] * b[i]);", ""),
    "max of two types": ("o[i] = max(a[i], 0);", ""),
    "vector of another type": ("half4 v = float4(1); o[i] = v.x;", ""),
    "no such function": ("o[i] = simd_sums(a[i]);", ""),
}


@pytest.mark.skipif(not find_clang(), reason="no clang")
@pytest.mark.parametrize("name", BY_TYPES)
def test_types(name: str) -> None:
    """Found by clang, on the right line where the fault is in the body."""
    found = types(launch(*BY_TYPES[name]))
    assert found
    assert not found[0].startswith("0:"), found


CLEAN = {
    "arithmetic": (
        "const int n = 4; float x = a[i] * n; float y = i * x - n * 2; o[i] = x * y;",
        "",
    ),
    "spaces": (
        "const device float4* v = (const device float4*)a; thread float* p = nullptr;\n"
        "float x[4]; thread float& r = x[0]; r = 1; p = x; o[i] = v[i / 4].x + p[0] + c[1];\n"
        "o[i] += f(v) + g(a) + g(c);",
        "inline float f(const device float4* v) { return v[0].y; }\n"
        "inline float g(const device float* v) { return v[0]; }\n"
        "inline float g(const constant float* v) { return v[0]; }\n",
    ),
    "vectors": (
        "float4 v = float4(c[0]); v *= c[1]; v = v + c[2]; v = c[3]; v.xy = c[0]; v.zw += a[i];\n"
        "const constant float4* w = (const constant float4*)c; v = w[0]; v += w[0];\n"
        "device float4* u = (device float4*)o; u[i / 4] = v; u[0].xy = v.zw;\n"
        "v = u[0] * w[0] * c[1]; v.xy = w[0].zw;\n"
        "o[i] = dot(v, w[0]) + dot(u[0], v) + max(v, w[0]).x + float4(half4(v)).x + w[0][1];",
        "",
    ),
    "overloads that call each other": (
        "o[i] = twice(2) + twice(2.0f);",
        "inline float twice(float x) { return x * 2; }\n"
        "inline float twice(int x) { return twice(float(x)); }\n",
    ),
    "constants and members": (
        "threadgroup float s[32]; Tile<float> t = {s}; s[i] = a[i]; o[i] = t.get(i) + N + t.n;",
        "constant constexpr int N = 4;\nconstant float weights[2] = {1, 2};\n"
        "template <typename T> struct Tile {\n"
        "  static constexpr int constant n = 8;\n  const threadgroup T* p;\n"
        "  T get(int i) const thread { return p[i % n] * weights[i & 1]; }\n};\n",
    ),
    "narrow types": (
        "bfloat x = b[i] * b[i] + bfloat(a[i]); q[i] = x;\n"
        "half y = h[i] * 2.0h; o[i] = x + float(y); q[i] = i < 4 ? b[i] : bfloat(0.0f);",
        "",
    ),
    "pragma and macros": (
        '#pragma clang loop unroll(full)\nfor (int k = 0; k < TWO; k++) o[i] = a[i];\n// "it\'s"',
        "#define TWO 2\n#define AT(p, k) \\\n  (p)[k]\n",
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_right_code_is_left_alone(name: str) -> None:
    assert lint(launch(*CLEAN[name])) == []


def test_published_and_own_kernels_are_left_alone() -> None:
    """Kernels that run on Macs every day, and those of the emulator's own tests."""
    launches = []
    arrays = gated_delta_inputs(128, mx.bfloat16)
    with with_kernels("mlx_lm.models.gated_delta", "plain", "forward") as (module, emulator):
        module.gated_delta_kernel(*arrays)
        module.gated_delta_kernel(*arrays, mx.ones((2, 3), mx.bool_))
        module.gated_delta_kernel_xtree(*arrays)
        launches += [r.launch for r in emulator.records]
    for loss in LOSSES.values():
        q, p = mx.random.normal((2, 1, 300), key=mx.random.key(1))
        with with_kernels("mlx_lm.tuner.losses", "plain", "forward") as (module, emulator):
            mx.eval(loss(module, q, p))
            launches += [r.launch for r in emulator.records]
    outputs = {"o": ((8, 9), mx.float32), "p": ((32,), mx.float32), "q": ((64,), mx.float32)}
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        fn = kernel(MATRIX, "a b", outputs, template=[("T", dtype)])
        launches += trace(fn, mx.ones((10, 10), dtype), mx.ones((8, 8), dtype))
    fn = kernel(ATOMICS, "a", {"o": ((7,), mx.int32)}, 96, 48, atomic_outputs=True)
    launches += trace(fn, mx.ones(96, mx.int32))
    fn = kernel(ATTRIBUTES, "a", {"o": ((7,), mx.int32)})
    launches += trace(fn, mx.ones(96))
    assert len(launches) >= 12
    for recorded in launches:
        assert lint(recorded) == [], recorded.name
