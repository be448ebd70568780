"""How many command buffers a pass is: MLX commits one when it holds enough.

After an operation with which a buffer holds more dispatches, or more Mi elements of the arrays that
it names, than the chip's limit (device.cpp and eval.cpp of MLX's Metal backend). An array counts
once a buffer, by its elements and whatever their size. The order is the graph's, and MLX's may
differ a little.
"""

from collections import Counter
from itertools import groupby

from count.chips import Chip

from .layout import layouts
from .trace import Graph
from .traffic import CHIP, FREE, costs

MEBI = 1 << 20
# Operations that write into a dense input of the same size that nothing else reads.
DONATED = frozenset(
    "Add Multiply Divide Compiled RMSNorm RoPE PartialRoPE Softmax Select Sigmoid "
    "ScaledDotProductAttention".split()
)


def command_buffers(graph: Graph, chip: Chip = CHIP) -> int:
    """The command buffers of a pass."""
    owner = owners(graph)
    limit, committed, dispatches, elements = chip.buffer_limit, 0, 0, 0
    named: set[str] = set()
    for _, some in groupby(costs(graph, chip), key=lambda cost: id(cost.op)):
        parts = list(some)
        op = parts[0].op
        dispatches += sum(cost.dispatches for cost in parts)
        elements += sum(cost.parts for cost in parts) // 4
        fresh = {owner[name] for name in (*op.inputs, *op.outputs)} - named
        elements += sum(graph.arrays[name].size for name in fresh)
        named |= fresh
        if dispatches > limit or elements // MEBI > limit:
            committed, dispatches, elements = committed + 1, 0, 0
            named.clear()
    return committed + 1


def owners(graph: Graph) -> dict[str, str]:
    """The array whose memory each array is in."""
    found = layouts(graph)
    read = Counter(
        base
        for op in graph.operations
        if op.name not in FREE
        for base in {found[name].base for name in op.inputs}
    )
    given = {*graph.inputs, *graph.constants}
    moved: dict[str, str] = {}
    for op in graph.operations:
        own = found[op.outputs[0]].base
        if op.name not in DONATED or own != op.outputs[0]:
            continue
        for source in (found[name] for name in op.inputs):
            base = source.base
            same = graph.arrays[base].nbytes == graph.arrays[own].nbytes
            dense = source.contiguous and found[own].contiguous
            if same and dense and read[base] == 1 and base not in given:
                moved[own] = moved.get(base, base)
                break
    return {name: moved.get(one.base, one.base) for name, one in found.items()}
