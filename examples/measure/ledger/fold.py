"""Replaces the operations that are one kernel on a GPU by one operation.

A trace inlines compiled functions and, without a GPU, the functions of `mx.fast`. Each pattern is
the trace of such a function on example arrays. Where a graph contains the same operations, they are
replaced by the function.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from .trace import Graph, Operation, trace

# Operations that only one side may have, because dtypes or ranks already agreed on the other.
OPTIONAL = frozenset("Broadcast AsType Unflatten Flatten ExpandDims Squeeze".split())


@dataclass(frozen=True, slots=True)
class Pattern:
    """The function `name` as the graph of an example; its first output must be computed last.

    `fits`: whether the kernel supports these input shapes.
    """

    name: str
    example: Graph
    fits: Callable[[Sequence[tuple[int, ...]]], bool]

    @classmethod
    def of(
        cls,
        name: str,
        fn: Callable[..., Sequence[mx.array]],
        *arrays: mx.array,
        fits: Callable[[Sequence[tuple[int, ...]]], bool] = lambda shapes: True,
    ) -> "Pattern":
        """A pattern of a function that returns a list, traced with example arrays."""
        return cls(name, trace(fn, arrays), fits)


def fold(graph: Graph, patterns: Iterable[Pattern]) -> Graph:
    """Replace the operations of each pattern, in the order given."""
    for pattern in patterns:
        graph = fold_one(graph, pattern)
    return graph


def fold_one(graph: Graph, pattern: Pattern) -> Graph:
    """Replace the operations of one pattern."""
    example_made_by = pattern.example.made_by()
    root = example_made_by[pattern.example.outputs[0]]
    if all(op.name != root.name for op in graph.operations):
        return graph
    made_by = graph.made_by()
    folded: dict[str, Operation] = {}
    for op in reversed(graph.operations):
        if op.name != root.name or op.outputs[0] in folded:
            continue
        bound = match(pattern.example, example_made_by, made_by, op)
        if bound is None:
            continue
        ins = tuple(bound[name] for name in pattern.example.inputs if name in bound)
        if not pattern.fits([graph.arrays[name].shape for name in ins]):
            continue
        outs = tuple(bound[name] for name in pattern.example.outputs)
        folded.update(dict.fromkeys(outs, Operation(pattern.name, ins, outs)))
    if not folded:
        return graph
    kept = [op for op in graph.operations if folded.keys().isdisjoint(op.outputs)]
    operations = (*kept, *{id(op): op for op in folded.values()}.values())
    return replace(graph, operations=operations).reached()


def match(
    example: Graph,
    example_made_by: dict[str, Operation],
    made_by: dict[str, Operation],
    op: Operation,
) -> dict[str, str] | None:
    """Match an example with the graph that ends with `op`; None if the operations differ.

    Returns the array of the graph for each array of the example.
    """
    bound: dict[str, str] = {}
    waiting = [(example.outputs[0], op.outputs[0])]
    while waiting:
        ours, theirs = waiting.pop()
        if ours in bound:
            if bound[ours] != theirs and ours not in example.constants:
                return None
            continue
        bound[ours] = theirs
        if ours not in example_made_by:
            continue
        wanted, found = example_made_by[ours], made_by.get(theirs)
        if found is None or found.name != wanted.name:
            if wanted.name in OPTIONAL:
                waiting.append((wanted.inputs[0], theirs))
                continue
            if found is not None and found.name in OPTIONAL:
                del bound[ours]
                waiting.append((ours, found.inputs[0]))
                continue
            return None
        if len(found.inputs) != len(wanted.inputs):
            return None
        waiting += zip(wanted.inputs, found.inputs, strict=True)
    return bound
