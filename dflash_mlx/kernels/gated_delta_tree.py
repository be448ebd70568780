"""Verify pass of a draft tree in one Gated DeltaNet layer, with the tape of its nodes.

As `gated_delta_tape`, but each row starts from the state of its parent. No state is written:
`gated_delta_replay` commits the accepted path.
"""

from typing import Any

import mlx.core as mx

from . import gated_delta_tape
from .dispatch import Op
from .gated_delta_tape import HEADERS, LANES, STATE_ROWS, follow, random_rows, template
from .samples import TREE, Case, binary_tree
from .shapes import Shapes
from .source import DEVICE_MEMORY_SIZE, Launcher, Source, recorded

MAX_NODES = 64  # bits of the integer that holds a path
SOURCE = Source(
    "gated_delta_tree",
    inputs=("q", "k", "v", "g", "beta", "state", "parents"),
    outputs=("y", "delta"),
    headers=HEADERS,
)


def reference(*inputs: Any) -> tuple[mx.array, mx.array]:
    """The outputs and deltas of the rows. The last of the inputs of `follow` are the parents."""
    *rows, parents = inputs
    y, delta, _ = follow(*rows, parents=parents)
    return y, delta


def launch(launcher: Launcher, *inputs: Any) -> list[mx.array]:
    """As `reference`, in one dispatch. A row has the same bits as in a chain of its path."""
    *rows, parents = inputs
    unused = [-1] * (DEVICE_MEMORY_SIZE - len(parents))
    above = mx.array([*parents, *unused], mx.int32)
    return recorded(launcher, dispatch, len(parents))(*rows, above)


def dispatch(launcher: Launcher, *inputs: mx.array) -> list[mx.array]:
    """`launch`, recorded once for each number of rows."""
    q, k, v, g, _, state, _ = inputs
    return launcher(
        SOURCE,
        inputs,
        template=[("InT", q.dtype), ("Rows", STATE_ROWS), *template(k, g, state)],
        grid=(LANES * v.shape[1] * v.shape[2], 1, 1),
        threadgroup=(LANES * STATE_ROWS, 1, 1),
        output_shapes=[v.shape, v.shape],
        output_dtypes=[q.dtype, mx.float32],
    )


def fits(*inputs: Any) -> bool:
    """Whether the kernel supports the inputs: as `gated_delta_tape.fits`, up to 64 nodes."""
    *rows, parents = inputs
    return len(parents) <= MAX_NODES and gated_delta_tape.fits(*rows)


OP = Op("gated_delta_tree", reference, launch, fits)


def cases(shapes: Shapes) -> list[Case]:
    trees = (*TREE[:-1], -1, 0, 5), binary_tree(shapes.rows)
    return [(*random_rows(shapes, len(tree), 7), tree) for tree in trees if shapes.delta]
