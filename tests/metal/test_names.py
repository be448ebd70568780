"""What MLX puts around a kernel is not ours: names of our own have a prefix, texts are ASCII."""

from importlib.resources import files

import pytest

from dflash_mlx.kernels.source import Source, read_source

from .names import global_names
from .ours import MODULES

PREFIX = "dflash_"
FILES = sorted(
    file.name
    for file in files("dflash_mlx.metal_kernels").iterdir()
    if file.name.endswith((".metal", ".h"))
)
SOURCES = [
    value for module in MODULES for value in vars(module).values() if isinstance(value, Source)
]


def unprefixed(text: str) -> list[str]:
    """Global names that Metal's next version could declare too, or a macro of MLX's."""
    return [name for name in global_names(text) if not name.lower().startswith(PREFIX)]


@pytest.mark.parametrize("source", SOURCES, ids=[source.name for source in SOURCES])
def test_names_at_global_scope_have_our_prefix(source: Source) -> None:
    """Functions, types, constants and macros of the headers; macros of the body."""
    assert not unprefixed(source.header)
    assert not unprefixed(f"void {PREFIX}kernel() {{\n{source.body}\n}}")
    assert not source.headers or global_names(source.header)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("inline float four(float x) {\n  return x;\n}\n", ["four"]),
        ("template <int N, typename P = float>\ninline P at(P p) {\n  return p;\n}\n", ["at"]),
        ("template <template <typename> class T>\nvoid f(T<int> t);\n", ["f"]),
        ("struct Best {\n  float value;\n};\n", ["Best"]),
        ("constant constexpr uint LANES = 32; // threads\n", ["LANES"]),
        ("constant float table[2] = {1, 2};\n", ["table"]),
        ("enum class Kind { one, two };\n", ["Kind"]),
        ("typedef float real;\nusing half_t = half;\nusing namespace metal;\n", ["half_t"]),
        ('#define UNROLL _Pragma("clang loop unroll(full)")\n', ["UNROLL"]),
        ("void dflash_kernel() {\n#define STEP 4\n  int here = STEP;\n}\n", ["STEP"]),
    ],
)
def test_names_without_it_are_seen(text: str, names: list[str]) -> None:
    """Each way to declare something at global scope; what is inside a function is not."""
    assert set(names) <= set(unprefixed(text))
    assert "here" not in global_names(text)


@pytest.mark.parametrize("name", FILES)
def test_texts_are_ascii(name: str) -> None:
    """MLX hands the text on as ASCII; another byte, in a comment too, breaks the build."""
    assert read_source(name).isascii()


def test_every_file_is_part_of_a_kernel() -> None:
    """So that the tests above see all of them."""
    used = {name for source in SOURCES for name in (f"{source.name}.metal", *source.headers)}
    assert used == set(FILES)
