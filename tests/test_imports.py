"""Nothing imports itself by way of others: modules, packages; under TYPE_CHECKING, in functions."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"dflash_mlx": ROOT / "dflash_mlx", "dflash_mlx.cli": ROOT / "cli"}


def modules() -> dict[str, Path]:
    """Every module of the package by its name; a package by that of its folder."""
    found = {}
    for top, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join([top, *(part for part in parts if part != "__init__")])] = file
    return found


def imports(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a module imports."""
    inside = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = (
                inside.split(".")[: len(inside.split(".")) - node.level + 1] if node.level else []
            )
            place = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{place}.{alias.name}"
                if whole in known or place in known:
                    yield whole if whole in known else place


def package(name: str) -> str:
    """The package of a module; one of the top folder is its own."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["dflash_mlx", "cli"] else 2])


def graphs() -> dict[str, dict[str, set[str]]]:
    """Who imports whom: modules, and packages."""
    known = modules()
    whole: dict[str, set[str]] = {}
    for name, file in known.items():
        if name != "dflash_mlx":  # loads a public name's module when it is asked for
            whole[name] = set(imports(name, file, known)) - {name, "dflash_mlx"}
    packages: dict[str, set[str]] = {}
    for name, targets in whole.items():
        packages.setdefault(package(name), set()).update(
            package(target) for target in targets if package(target) != package(name)
        )
    return {"modules": whole, "packages": packages}


@pytest.mark.parametrize("kind", ["modules", "packages"])
def test_nothing_imports_itself(kind: str) -> None:
    graph = graphs()[kind]
    assert len(graph) > 40
    assert sum(map(len, graph.values())) > 200
    TopologicalSorter(graph).prepare()


def test_a_cycle_is_noticed() -> None:
    graph = graphs()["packages"]
    graph["dflash_mlx.errors"].add("dflash_mlx.engine")
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()
