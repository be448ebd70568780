"""Nothing imports itself by way of others: modules, packages; under TYPE_CHECKING, in functions."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from structure import import_graphs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["modules", "packages"])
def test_nothing_imports_itself(kind: str) -> None:
    graph = import_graphs(ROOT)[kind]
    assert len(graph) > 40
    assert sum(map(len, graph.values())) > 200
    TopologicalSorter(graph).prepare()


def test_a_cycle_is_noticed() -> None:
    graph = import_graphs(ROOT)["packages"]
    graph["dflash_mlx.errors"].add("dflash_mlx.engine")
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()
