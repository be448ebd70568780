"""Nothing imports itself by way of others: modules, packages; under TYPE_CHECKING, in functions.

Nor does a test module import another one: what they share is in tests/support.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from structure import import_graphs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["modules", "packages"])
def test_nothing_imports_itself(kind: str) -> None:
    graph = import_graphs(ROOT)[kind]
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("kind", "engine"), [("modules", "dflash_mlx.engine.engine"), ("packages", "dflash_mlx.engine")]
)
def test_a_cycle_is_noticed(kind: str, engine: str) -> None:
    """The engine uses the errors; if they used the engine, the test above would fail."""
    graph = import_graphs(ROOT)[kind]
    graph["dflash_mlx.errors"].add(engine)
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


def test_no_test_module_imports_another() -> None:
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *[alias.name for alias in node.names]]
            modules = [name.rpartition(".")[2] for name in names]
            assert not [name for name in modules if name.startswith("test_")], file
