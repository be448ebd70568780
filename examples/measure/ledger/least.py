"""The least that a pass must move: read its inputs once and write its results once.

Weights, keys, values and states count once; of a table only the rows that are looked up; of experts
as many as the rows choose on average. Intermediate results are not counted: on a chip with enough
memory they would not be moved.
"""

from .layout import layouts
from .trace import Graph
from .traffic import FREE, is_mixture, picks, weights_of


def least(graph: Graph) -> int:
    """Bytes of a pass that must be read and written."""
    arrays, found = graph.arrays, layouts(graph)
    read: dict[str, int] = {}
    written = 0
    for op in graph.operations:
        if op.name in FREE:
            continue
        sizes = {name: found[name].elements * arrays[name].dtype.size for name in op.inputs}
        if op.name in ("Gather", "GatherAxis"):
            sizes[op.inputs[0]] = arrays[op.outputs[0]].nbytes
        elif op.name == "SliceUpdate":
            sizes[op.inputs[0]] = 0
            written += sizes[op.inputs[1]]
        elif is_mixture(op):
            _, distinct, experts = picks(op, arrays)
            for name in weights_of(op):
                sizes[name] = round(sizes[name] * distinct / experts)
        for name, size in sizes.items():
            base = found[name].base
            if base in graph.inputs:
                read[base] = max(read.get(base, 0), size)
    own = {found[name].base: arrays[name].nbytes for name in graph.outputs}
    written += sum(size for base, size in own.items() if base not in graph.inputs)
    return sum(read.values()) + written
