"""The greedy walk of DFlash 2's candidate selector: each position's best candidate after the last.

Source: "Keep Drafting Parallel" (inco.ai/blog/dflash2), candidate selector. The reference scores
all pairs of candidates of neighbouring positions; the kernel only the pairs that the walk visits.
"""

from typing import Any

import mlx.core as mx

from .dispatch import Op
from .samples import Case, dtype_of, normal_array
from .shapes import Shapes
from .source import Launcher, Source, recorded

SOURCE = Source(
    "selector_walk",
    ("unary", "candidates", "anchor", "hidden", "predecessors", "successors"),
    ("drafts",),
)
THREADS = 256
MAX_CANDIDATES = 256  # threadgroup memory holds the scores of two positions
MAX_CODEBOOK_ROWS = 4096  # of a case; more would test nothing else


def reference(unary: mx.array, candidates: mx.array, *rest: Any) -> mx.array:
    """The drafts, int32 [γ]; of equal scores the first wins. Arguments as those of `scores`."""
    path = walk(mx.argmax(scores(unary, candidates, *rest), axis=-1))
    return mx.take_along_axis(candidates, path[:, None], axis=-1)[:, 0].astype(mx.int32)


def scores(
    unary: mx.array,
    candidates: mx.array,
    anchor: int,
    hidden: mx.array,
    predecessors: mx.array,
    successors: mx.array,
) -> mx.array:
    """The lattice, float32 [γ, k, k]: [t, i, j] scores candidate j at t after i at t - 1.

    unary: float32 [γ, k], logits of the candidates. candidates: ids [γ, k]; the position before the
    first holds the anchor. hidden: [γ, r], the positions' projected hidden states. predecessors,
    successors: the codebooks [V, r]. score = unary + sum over r of predecessor hidden successor.
    """
    start = mx.full((1, candidates.shape[-1]), anchor, dtype=candidates.dtype)
    before = predecessors[mx.concatenate([start, candidates[:-1]])] * hidden[:, None]
    after = successors[candidates]
    pairs = before.astype(mx.float32) @ after.astype(mx.float32).swapaxes(1, 2)
    return unary[:, None] + pairs


def walk(choices: mx.array) -> mx.array:
    """Follow the best successors [γ, k] from the anchor -> each position's candidate index [γ]."""
    index = mx.array(0)
    path = []
    for row in choices:
        index = row[index]
        path.append(index)
    return mx.stack(path)


def launch(
    launcher: Launcher, unary: mx.array, candidates: mx.array, anchor: int, *rest: mx.array
) -> mx.array:
    """As `reference`, in one dispatch."""
    run = recorded(launcher, dispatch, len(candidates))
    return run(unary, candidates, mx.array(anchor), *rest)


def dispatch(launcher: Launcher, *inputs: mx.array) -> mx.array:
    """`launch`, recorded once for each number of positions; the anchor is int32 []."""
    _, candidates, _, hidden, predecessors, _ = inputs
    same = predecessors.dtype == hidden.dtype
    return launcher(
        SOURCE,
        inputs,
        grid=(THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[candidates.shape[:1]],
        output_dtypes=[mx.int32],
        template=[("K", candidates.shape[-1]), ("P", hidden.dtype if same else mx.float32)],
    )[0]


def fits(unary: mx.array, candidates: mx.array, *_: object) -> bool:
    """Whether the kernel supports candidates [γ, k]: at least one, k <= 256."""
    return candidates.size > 0 and candidates.shape[-1] <= MAX_CANDIDATES


OP = Op("selector_walk", reference, launch, fits)


def cases(shapes: Shapes) -> list[Case]:
    """1, 6 and 13 positions, and the model's block.

    The values are small integers: sums do not depend on their order, and there are many ties.
    """
    if shapes.selector is None:
        return []
    k = shapes.selector.candidates
    vocab = max(k, min(shapes.vocab, MAX_CODEBOOK_ROWS))
    kinds = shapes.dtype, shapes.selector.dtype, shapes.selector.dtype
    found = []
    for seed, positions in enumerate((1, 6, 13, shapes.rows - 1), 1):
        rows = [
            mx.round(0.7 * normal_array(seed + place, count, shapes.selector.rank))
            for place, count in enumerate((positions, vocab, vocab))
        ]
        rows = [part.astype(dtype_of(kind)) for part, kind in zip(rows, kinds, strict=True)]
        ids = mx.argpartition(normal_array(seed + 3, positions, vocab), k - 1, axis=-1)[:, :k]
        unary = mx.round(0.7 * normal_array(seed + 4, positions, k))
        found.append((unary, mx.sort(ids, axis=-1).astype(mx.uint32), 7, *rows))
    return found
