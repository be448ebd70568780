"""Attention of the few rows of a block, a chain or a tree, over a long cache of keys and values.

Each row attends to the committed context and to its path through the block (DDTree, arXiv
2604.12989: ancestors and itself). In exact mode a row has the same bits as a plain decoding step
over its path: they do not depend on the other rows. RoPE is already applied to queries and keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import mlx.core as mx

from .dispatch import EXACT_ROWS, Op
from .samples import TREE, Case, binary_tree, dtype_of, normal_array
from .shapes import AttentionShape, Shapes
from .source import DEVICE_MEMORY_SIZE, Launcher, Source, recorded

SPLIT = 128  # positions per threadgroup; more in a long context, see `edges_between`
SHORT_SPLITS = 8  # with SPLIT positions, at least
CORES = 64  # that can share out a long context evenly, see `short_splits`
THREADS = 256  # at most per threadgroup in exact mode; twice as many for heads of up to SMALL_DIM
SMALL_DIM = 64
LARGE_DIM = 128  # a row of larger heads has twice as many lanes or simdgroups
TEAM_ROWS = 32  # of queries, for the simdgroups that share a tile of keys
MAX_ATTENTION_ROWS = EXACT_ROWS  # bits of the integer that holds a path
HEAD_DIMS = (32, 64, 80, 96, 128, 192, 256)
FLOATS = (mx.float32, mx.bfloat16, mx.float16)
NO_WINDOW = 1 << 30
FEW_ROWS = 8  # up to here MLX's attention reads keys and values again for each row
NEAR = 4096  # positions; contexts of up to this length are timed as one size
FAR = 2 * NEAR  # positions; when a longer context is timed
HEADERS = ("common.h", "lanes.h", "verify_attention.h")
SOURCE = Source(
    "verify_attention",
    inputs=("q", "keys", "values", "sees", "depths", "edges", "sizes", "factors"),
    outputs=("partial", "norms"),
    headers=HEADERS,
)
MATRIX = replace(SOURCE, name="verify_attention_matrix")
COMBINE = Source(
    "verify_attention_combine",
    inputs=("partial", "norms", "sinks"),
    outputs=("out",),
    headers=(),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a block after `context` committed rows, and which rows each of them sees.

    `paths`: for each row the block's rows from the root to the row itself. `sees`: uint32
    [max(T, 8), 1 or 2], the paths as bits. `depths`: int32 [max(T, 8)], the row's index on its
    path. `start` is the position of the cache's row 0; row t has the position
    start + context + depths[t].
    """

    context: int
    start: int
    paths: tuple[tuple[int, ...], ...]
    sees: mx.array
    depths: mx.array
    _splits: "dict[tuple[float, float, int, int, int], Splits]" = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, context: int, parents: Sequence[int], start: int = 0) -> "Rows":
        """A tree: each row's parent is an earlier row, or -1. `range(-1, T - 1)` is a chain."""
        paths: list[tuple[int, ...]] = []
        for row, parent in enumerate(parents):
            paths.append((*(paths[parent] if parent >= 0 else ()), row))
        bits = [sum(1 << row for row in path) for path in paths]
        words = range(0, len(paths), 32)
        sees = [[bit >> word & 0xFFFFFFFF for word in words] for bit in bits]
        depths = [len(path) - 1 for path in paths]
        unused = DEVICE_MEMORY_SIZE - len(paths)
        sees += [[0] * len(words)] * unused
        arrays = mx.array(sees, mx.uint32), mx.array(depths + [0] * unused, mx.int32)
        return cls(context, start, tuple(paths), *arrays)

    def splits(self, scores: "Scores", split: int, short: int) -> "Splits":
        """See `edges_between`; made once for all layers with equal scores."""
        key = scores.scale, scores.cap, scores.window, split, short
        if key not in self._splits:
            self._splits[key] = Splits.of(self, scores, split, short)
        return self._splits[key]


@dataclass(frozen=True, slots=True)
class Scores:
    """How queries and keys become weights.

    score = scale q.k; with a `cap` then cap tanh(score / cap) (Gemma). A row sees the `window`
    newest positions, itself included; 0 is all. `sinks` [Hq]: one more logit for each head, without
    a value (gpt-oss).
    """

    scale: float
    cap: float = 0.0
    window: int = 0
    sinks: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Splits:
    """The `count` splits of the positions that the rows see, and the kernel's small arrays.

    `edges`: int32 [max(count + 1, 8)], where the splits begin, and the end of the last. `sizes`:
    int32 [4], rows of context, position of the cache's row 0, window, T. `factors`: float32 [2].
    """

    count: int
    edges: mx.array
    sizes: mx.array
    factors: mx.array

    @classmethod
    def of(cls, rows: Rows, scores: Scores, split: int, short: int) -> "Splits":
        """The splits of positions. Those of a window are all short: it has few of them."""
        count = len(rows.paths)
        window = scores.window or NO_WINDOW
        root = rows.start + rows.context
        first = max(rows.start, root - window + 1)
        edges = edges_between(first, root + count, split, 0 if scores.window else short)
        unused = [edges[-1]] * (DEVICE_MEMORY_SIZE - len(edges))
        return cls(
            len(edges) - 1,
            mx.array(edges + unused, mx.int32),
            mx.array([rows.context, rows.start, window, count], mx.int32),
            mx.array([scores.scale, scores.cap], mx.float32),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """How to launch a kernel: for each KV head and split `count` threadgroups of `threads`."""

    source: Source
    template: tuple[tuple[str, Any], ...]
    threads: int
    count: int


def in_order(packed: int, dim: int) -> Plan:
    """The kernel of exact mode for the packed rows of a KV head: 4 or 8 lanes hold a row.

    Threads have about 114 registers, or 72 where heads have up to `SMALL_DIM` elements.
    """
    lanes = 8 if dim > LARGE_DIM else 4
    most = 2 * THREADS if dim <= SMALL_DIM else THREADS
    threads = min(most, -(-packed * lanes // 32) * 32)
    return Plan(SOURCE, (), threads, -(-packed * lanes // threads))


def by_matrices(
    packed: int, dim: int, queries: mx.Dtype, keys: mx.Dtype, *, smaller: bool = False
) -> Plan:
    """The other kernel: 2 or 4 simdgroups for 32 packed rows, up to 128 or 96 in a threadgroup.

    Threads have about 118 registers at most, so that the largest threadgroup has 256 threads, or
    384 for large heads, whose `smaller` ones have 256. There are two texts: few rows need less
    threadgroup memory.
    """
    most = most_rows(dim, smaller=smaller)
    rows = TEAM_ROWS if packed <= TEAM_ROWS else most
    teams = min(-(-packed // TEAM_ROWS), most // TEAM_ROWS)
    simdgroups = 4 if dim > LARGE_DIM else 2
    template = ("Rows", rows), ("QueryT", queries), ("KeyT", keys)
    return Plan(MATRIX, template, teams * simdgroups * 32, -(-packed // most))


def most_rows(dim: int, *, smaller: bool = False) -> int:
    """The most packed rows of a threadgroup of matrices; those of large heads may be `smaller`."""
    if dim > LARGE_DIM:
        return 64 if smaller else 96
    return 128


def reference(
    q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores
) -> mx.array:
    """The attention outputs, as q in shape and dtype; computed in float32.

    `q` [Hq, T, D]; `keys` and `values` [Hkv, capacity, D] in the order of positions:
    `rows.context` committed rows, the rows of the block, then unused rows. All three may have one
    more axis of 1 in front. Each row is computed alone over the keys that it sees, so its bits do
    not depend on the other rows.
    """
    shape = q.shape
    q, keys, values = without_batch(q, keys, values)
    heads, count, dim = q.shape
    packed = q.reshape(len(keys), -1, count, dim).astype(mx.float32) * scores.scale
    out = []
    window = scores.window or NO_WINDOW
    for row, path in enumerate(rows.paths):
        oldest = max(0, rows.context + len(path) - window)
        in_block = mx.array([rows.context + step for step in path[-window:]])
        k, v = (
            mx.concatenate(
                [part[:, oldest : rows.context], mx.take(part, in_block, axis=1)], axis=1
            )
            for part in (keys.astype(mx.float32), values.astype(mx.float32))
        )
        logits = packed[:, :, row] @ k.swapaxes(1, 2)
        if scores.cap:
            logits = scores.cap * mx.tanh(logits / scores.cap)
        if scores.sinks is not None:
            sinks = scores.sinks.astype(mx.float32).reshape(len(keys), -1, 1)
            logits = mx.concatenate([logits, sinks], axis=-1)
        weights = mx.softmax(logits, axis=-1, precise=True)[..., : k.shape[1]]
        out.append((weights @ v).reshape(heads, dim))
    return mx.stack(out, axis=1).astype(q.dtype).reshape(shape)


def without_batch(*arrays: mx.array) -> list[mx.array]:
    """The arrays without their axis of 1 in front, if they have one: views, where `x[0]` copies."""
    return [array.squeeze(0) if array.ndim > 3 else array for array in arrays]


def launch(
    launcher: Launcher,
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    rows: Rows,
    scores: Scores,
    split: int = SPLIT,
    short: int = 0,
    *,
    exact: bool = False,
    smaller: bool = False,
) -> mx.array:
    """As `reference`, in two dispatches: the splits, then their combination.

    `short` is the number of splits of `split` positions; 0 is as many as `short_splits` says, in
    exact mode SHORT_SPLITS. Rows are multiplied by matrices of a simdgroup, unless
    `exact`: their sums depend on which keys are next to each other. `keys` and `values` are read
    once for as many rows of queries of a KV head as a threadgroup has, see `by_matrices`, also for
    `smaller`. MLX copies arrays that are not row-contiguous.
    """
    if not short:
        short = SHORT_SPLITS if exact else short_splits(q, keys, smaller=smaller)
    splits = rows.splits(scores, split, short)
    return recorded(launcher, attend, keys.shape[-2])(
        *(q, keys, values, rows.sees, rows.depths),
        *(splits.edges, splits.sizes, splits.factors, scores.sinks),
        *(splits.count, scores.cap > 0, exact, smaller),
    )


def attend(launcher: Launcher, *args: Any) -> mx.array:
    """`launch` with the arrays of the rows and of `parts` splits."""
    q, keys, values, *small, sinks, parts, capped, exact, smaller = args
    shape = q.shape
    q, keys, values = without_batch(q, keys, values)
    heads, count, dim = q.shape
    groups = len(keys)
    packed = heads // groups * count
    if exact:
        plan = in_order(packed, dim)
    else:
        plan = by_matrices(packed, dim, q.dtype, keys.dtype, smaller=smaller)
    partial, norms = launcher(
        plan.source,
        [q, keys, values, *small],
        template=[("Hkv", groups), ("D", dim), ("Capped", capped), *plan.template],
        grid=(plan.threads * plan.count, groups, parts),
        threadgroup=(plan.threads, 1, 1),
        output_shapes=[(parts, groups, packed, dim), (parts, groups, packed, 2)],
        output_dtypes=[mx.float32, mx.float32],
    )
    (out,) = launcher(
        COMBINE,
        [partial, norms, partial if sinks is None else sinks],  # any buffer if there are none
        template=[("OutT", q.dtype), ("Hkv", groups), ("D", dim), ("Sinks", sinks is not None)],
        grid=(dim, heads * count, 1),
        threadgroup=(dim, 1, 1),
        output_shapes=[shape],
        output_dtypes=[q.dtype],
    )
    return out


launch_exact = partial(launch, exact=True)  # a row has the bits of a plain step over its path
launch_smaller = partial(launch, smaller=True)  # at most 256 threads in a threadgroup


def edges_between(first: int, end: int, split: int, short: int = 0) -> list[int]:
    """The starts of the splits of positions `first` to `end` - 1, and the end of the last one.

    Inner edges are at fixed positions, so that the order of a row's sums is fixed. The first
    `short` splits have `split` positions, the others double in length whenever their position
    doubles: a long context has enough splits for all cores, but few partial results to write and
    read. With `short` 0 all have `split` positions.
    """
    edges = [first]
    edge = 0
    while edge < end:
        octave = (edge // (short * split)).bit_length() if short else 0
        edge += split << octave
        if edge > first:
            edges.append(edge)
    return edges


def short_splits(q: mx.array, keys: mx.array, *, smaller: bool = False) -> int:
    """How many splits `launch` makes short, for which a threadgroup of the longest split of a long
    context has at most 1 / CORES of the work.
    """
    heads, count, dim = q.shape[-3:]
    groups = keys.shape[-3]
    packed = heads // groups * count
    return max(SHORT_SPLITS, CORES // (groups * -(-packed // most_rows(dim, smaller=smaller))))


def size(
    q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores
) -> tuple[int, ...]:
    """The sizes that the speed depends on: (query heads, KV heads, D, window, rows, context).

    `window` is 1 if there is one, `rows` FEW_ROWS up to that many (MLX has another kernel for
    them), `context` NEAR up to that many positions or with a window. Otherwise they are 0.
    """
    heads, count, dim = q.shape[-3:]
    windowed = scores.window > 0
    near = windowed or rows.context <= NEAR
    few = count <= FEW_ROWS
    return heads, keys.shape[-3], dim, int(windowed), FEW_ROWS * few, NEAR * near


def fits(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> bool:
    """At most 64 rows, D in `HEAD_DIMS`, keys and values of one shape and dtype."""
    return (
        len(rows.paths) <= MAX_ATTENTION_ROWS
        and q.shape[-1] in HEAD_DIMS
        and keys.shape == values.shape
        and keys.dtype == values.dtype
        and keys.dtype in FLOATS
        and q.dtype in FLOATS
    )


OP = Op("verify_attention", reference, launch, fits, size, launch_exact, launch_smaller)


def cases(shapes: Shapes) -> list[Case]:
    """For each layer type: two rows, trees of the most rows, of a few, and across a split's edge.

    The last is the model's chain. The largest tree has the largest threadgroup, see `Plan`.
    """
    return [
        random_case(kind, shapes, parents, context, start, kind.window and window)
        for kind in shapes.attention
        for parents, context, start, window in (
            (range(-1, 1), 0, 0, 0),
            (binary_tree(MAX_ATTENTION_ROWS), 3, 0, 7),
            (TREE, 37, 5, 9),
            (TREE, 253, 0, 12),
            (range(-1, shapes.rows - 1), shapes.context, 0, kind.window),
        )
    ]


def sizes(shapes: Shapes) -> Iterator[Case]:
    """Yield each layer type with few rows and with the model's, after a short and a long context.

    Layers with a window get no long one: they would see no more of it.
    """
    for kind in shapes.attention:
        for count in sorted({min(FEW_ROWS, shapes.rows), shapes.rows}):
            for context in (shapes.context, *(() if kind.window else (FAR,))):
                yield random_case(kind, shapes, range(-1, count - 1), context, 0, kind.window)


def random_case(
    kind: AttentionShape,
    shapes: Shapes,
    parents: Sequence[int],
    context: int,
    start: int,
    window: int,
) -> Case:
    """Rows of a layer type after a context. The cache is NaN after the rows of the block."""
    dtype = dtype_of(shapes.dtype)
    count = context + len(parents)
    q = normal_array(2, kind.heads, len(parents), kind.head_dim, dtype=dtype)
    sinks = normal_array(1, kind.heads, dtype=dtype) if kind.sinks else None
    spare = mx.full((kind.kv_heads, 4, kind.head_dim), mx.nan, dtype=dtype)
    parts = (normal_array(n, kind.kv_heads, count, kind.head_dim, dtype=dtype) for n in (3, 4))
    keys, values = (mx.concatenate([part, spare], axis=1) for part in parts)
    scores = Scores(kind.head_dim**-0.5, window=window, sinks=sinks)
    return q, keys, values, Rows.of(context, parents, start), scores
