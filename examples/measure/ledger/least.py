"""The least that a pass can move: what it needs of its inputs read once, its results written once.

Weights, keys and values and states count once, of a table the rows that are looked up, of a mixture
the experts that rows can pick at most. What lies between is not counted: a chip with room for it
would move none of it.
"""

from .layout import layouts
from .trace import Graph
from .traffic import FREE, picks, weights_of


def least(graph: Graph) -> int:
    """Bytes of a pass, read and written."""
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
        elif op.name in ("GatherQMM", "GatherMM"):
            _, distinct, experts = picks(op, arrays)
            for name in weights_of(op):
                sizes[name] = sizes[name] * distinct // experts
        for name, size in sizes.items():
            base = found[name].base
            if base in graph.inputs:
                read[base] = max(read.get(base, 0), size)
    own = {found[name].base: arrays[name].nbytes for name in graph.outputs}
    written += sum(size for base, size in own.items() if base not in graph.inputs)
    return sum(read.values()) + written
