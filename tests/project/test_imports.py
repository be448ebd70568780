"""Nothing imports itself by way of others: modules, packages; under TYPE_CHECKING, in functions."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("dflash_mlx", "cli")  # cli installs as dflash_mlx.cli


def module_name(file: Path) -> str:
    """The dotted name of a file's module; `__init__.py` has the name of its folder."""
    parts = [part for part in file.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
    return ".".join(["dflash_mlx", *parts] if parts[0] == "cli" else parts)


def imported_modules(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    inside = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            place = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                for candidate in (f"{place}.{alias.name}", place):
                    if candidate in known:
                        yield candidate
                        break


def package_of(name: str) -> str:
    """The package of a module: a folder of `dflash_mlx` or of its `cli`."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["dflash_mlx", "cli"] else 2])


def import_graphs() -> dict[str, dict[str, set[str]]]:
    """The imports between "modules" and between "packages", without lazy public names."""
    files = [file for top in FOLDERS for file in (ROOT / top).rglob("*.py")]
    known = {module_name(file): file for file in files}
    modules: dict[str, set[str]] = {}
    packages: dict[str, set[str]] = {}
    for name, file in known.items():
        if name == "dflash_mlx":  # loads the modules of public names lazily
            continue
        targets = set(imported_modules(name, file, known)) - {name, "dflash_mlx"}
        modules[name] = targets
        own = package_of(name)
        packages.setdefault(own, set()).update({package_of(t) for t in targets} - {own})
    return {"modules": modules, "packages": packages}


@pytest.mark.parametrize("kind", ["modules", "packages"])
def test_nothing_imports_itself(kind: str) -> None:
    graph = import_graphs()[kind]
    TopologicalSorter(graph).prepare()
