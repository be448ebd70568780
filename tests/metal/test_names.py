"""What MLX puts around a kernel is not ours: names of our own have a prefix, texts are ASCII."""

import re
from importlib.resources import files

import pytest

from dflash_mlx.kernels.source import Source, read_source

from .ours import MODULES

FILES = sorted(
    file.name
    for file in files("dflash_mlx.metal_kernels").iterdir()
    if file.name.endswith((".metal", ".h"))
)
SOURCES = [
    value for module in MODULES for value in vars(module).values() if isinstance(value, Source)
]
# What a line that is not indented declares: a macro, a type, a function or a variable.
MACRO = re.compile(r"^\s*#\s*define (\w+)", re.MULTILINE)
TYPE = re.compile(r"^(?:struct|class|enum class|enum|union|using|typedef) (\w+)", re.MULTILINE)
VALUE = re.compile(
    r"^(?!template|struct|class|enum|union|using|typedef)\w[^=;({\[\n]*?\b(\w+)(?= ?[=(\[;])",
    re.MULTILINE,
)


@pytest.mark.parametrize("source", SOURCES, ids=[source.name for source in SOURCES])
def test_names_at_global_scope_have_our_prefix(source: Source) -> None:
    """Metal's next version could declare others too; macros of the body are global as well."""
    names = [name for kind in (MACRO, TYPE, VALUE) for name in kind.findall(source.header)]
    assert names or not source.headers
    assert all(name.lower().startswith("dflash_") for name in [*names, *MACRO.findall(source.body)])


def test_texts_are_ascii_and_all_are_part_of_a_kernel() -> None:
    """MLX hands the text on as ASCII; another byte, in a comment too, breaks the build."""
    assert all(read_source(name).isascii() for name in FILES)
    used = {name for source in SOURCES for name in (f"{source.name}.metal", *source.headers)}
    assert used == set(FILES)
