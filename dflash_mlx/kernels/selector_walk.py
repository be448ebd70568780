"""The greedy drafts of DFlash 2: from the anchor, always the best candidate after the one taken.

The reference scores every pair of neighbours, the kernel only the rows that the walk goes through,
and takes the codebooks' rows by itself.
"""

import mlx.core as mx

from .dispatch import Op
from .source import Launcher, Source

SOURCE = Source(
    "selector_walk",
    ("own", "candidates", "anchor", "hidden", "predecessors", "successors"),
    ("drafts",),
)
THREADS = 256
MAX_CANDIDATES = 256  # two sets of scores in threadgroup memory


def reference(
    own: mx.array,
    candidates: mx.array,
    anchor: int,
    hidden: mx.array,
    predecessors: mx.array,
    successors: mx.array,
) -> mx.array:
    """The drafts, [γ] token ids; of equal scores the first. Arguments as those of `scores`."""
    lattice = scores(own, candidates, anchor, hidden, predecessors, successors)
    path = walk(mx.argmax(lattice, axis=-1))
    return mx.take_along_axis(candidates, path[:, None], axis=-1)[:, 0].astype(mx.int32)


def scores(
    own: mx.array,
    candidates: mx.array,
    anchor: int,
    hidden: mx.array,
    predecessors: mx.array,
    successors: mx.array,
) -> mx.array:
    """The lattice [γ, k, k] float32: [t, i, j] scores candidate j of slot t after i of t - 1.

    own: [γ, k] float32, each candidate's own score. candidates: [γ, k] ids; before them stands
    the anchor. hidden: [γ, r], the slots' projected hidden states. predecessors, successors: [V, r]
    codebooks (spec 3.3).
    """
    start = mx.full((1, candidates.shape[-1]), anchor, dtype=candidates.dtype)
    before = predecessors[mx.concatenate([start, candidates[:-1]])] * hidden[:, None]
    after = successors[candidates]
    pairs = before.astype(mx.float32) @ after.astype(mx.float32).swapaxes(1, 2)
    return own[:, None] + pairs


def walk(choices: mx.array) -> mx.array:
    """Each row's choice [γ, k] -> the places [γ] of the candidates taken, from the anchor."""
    place, path = mx.array(0), []
    for row in choices:
        place = row[place]
        path.append(place)
    return mx.stack(path)


def launch(
    launcher: Launcher,
    own: mx.array,
    candidates: mx.array,
    anchor: int,
    hidden: mx.array,
    predecessors: mx.array,
    successors: mx.array,
) -> mx.array:
    """`reference` in one dispatch."""
    same = predecessors.dtype == hidden.dtype
    return launcher(
        SOURCE,
        [own, candidates, mx.array(anchor), hidden, predecessors, successors],
        grid=(THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[candidates.shape[:1]],
        output_dtypes=[mx.int32],
        template=[("K", candidates.shape[-1]), ("P", hidden.dtype if same else mx.float32)],
    )[0]


def fits(own: mx.array, candidates: mx.array, *_: object) -> bool:
    """Whether the kernel takes so many candidates [γ, k]."""
    return candidates.size > 0 and candidates.shape[-1] <= MAX_CANDIDATES


OP = Op("selector_walk", reference, launch, fits)
