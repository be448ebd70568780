"""Attention of the few rows of a block, a chain or a tree, over a long cache of keys and values.

Each row attends to the committed context and to its own path through the block, exactly as a
plain decoding step over that path would: no row's arithmetic depends on the other rows. Knows
neither caches nor models; keys already carry their positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from .dispatch import EXACT_ROWS, Op
from .source import Launcher, Source

SPLIT = 256  # positions one threadgroup goes through, in a long context four times as many
SHORT = 16  # splits of that length
THREADS = 256  # of a threadgroup at most
ROWS = EXACT_ROWS  # of a block at most: bits of the word that holds a path
DIMS = (32, 64, 80, 96, 128, 192, 256)
FLOATS = (mx.float32, mx.bfloat16, mx.float16)
NO_WINDOW = 1 << 30
NO_SINK = -3.4028234663852886e38  # the lowest float32: its weight is 0, and no kernel needs -inf
HEADERS = ("lanes.h", "verify_attention.h")
SOURCE = Source(
    "verify_attention",
    inputs=("q", "keys", "values", "sees", "depths", "edges", "sizes", "factors"),
    outputs=("partial", "norms"),
    headers=HEADERS,
)
COMBINE = Source(
    "verify_attention_combine",
    inputs=("partial", "norms", "sinks"),
    outputs=("out",),
    headers=(),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a block behind `context` committed ones, and what each of them sees.

    `paths` are the rows from the first to each row itself. `sees` uint32 [T, 1 or 2] has them as
    bits, `depths` int32 [T] the row's place on its path. `start` is the position of the cache's
    row 0; row t has position start + context + depths[t].
    """

    context: int
    start: int
    paths: tuple[tuple[int, ...], ...]
    sees: mx.array
    depths: mx.array

    @classmethod
    def of(cls, context: int, parents: Sequence[int], start: int = 0) -> "Rows":
        """A tree: `parents` are earlier rows, -1 the context. `range(-1, T - 1)` is a chain."""
        paths: list[tuple[int, ...]] = []
        for row, parent in enumerate(parents):
            paths.append((*(paths[parent] if parent >= 0 else ()), row))
        bits = [sum(1 << row for row in path) for path in paths]
        words = range(0, len(paths), 32)
        sees = [[bit >> word & 0xFFFFFFFF for word in words] for bit in bits]
        depths = [len(path) - 1 for path in paths]
        arrays = mx.array(sees, mx.uint32), mx.array(depths, mx.int32)
        return cls(context, start, tuple(paths), *arrays)


@dataclass(frozen=True, slots=True)
class Scores:
    """How queries and keys become weights.

    Scores are `scale` q.k, then, with a `cap`, cap tanh(score / cap) (Gemma). A row sees the
    `window` newest positions, its own among them; 0 is all. `sinks` [Hq] are one more logit a head,
    without a value (gpt-oss).
    """

    scale: float
    cap: float = 0.0
    window: int = 0
    sinks: mx.array | None = None


def reference(
    q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores
) -> mx.array:
    """What each row reads, [Hq, T, D] of q's dtype; float32 within.

    `q` [Hq, T, D]; `keys` and `values` [Hkv, capacity, D], by position: `rows.context` committed
    rows, then the block's, then whatever. Row by row, over nothing but what the row sees: as
    invariant as the kernel, on any backend, and no faster than plain steps.
    """
    heads, count, dim = q.shape
    packed = q.reshape(len(keys), -1, count, dim).astype(mx.float32) * scores.scale
    out = []
    window = scores.window or NO_WINDOW
    for row, path in enumerate(rows.paths):
        oldest = max(0, rows.context + len(path) - window)
        own = mx.array([rows.context + step for step in path[-window:]])
        k, v = (
            mx.concatenate([part[:, oldest : rows.context], mx.take(part, own, axis=1)], axis=1)
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
    return mx.stack(out, axis=1).astype(q.dtype)


def launch(
    launcher: Launcher,
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    rows: Rows,
    scores: Scores,
    split: int = SPLIT,
) -> mx.array:
    """As `reference`, in two dispatches: the splits' parts, then their sum.

    `keys` and `values` are whole buffers, row-contiguous, or they are copied. Each is read once for
    64 rows of queries of a head of keys (32 where D is over 128).
    """
    heads, count, dim = q.shape
    packed = heads // len(keys) * count
    root, window = rows.start + rows.context, scores.window or NO_WINDOW
    edges = edges_between(max(rows.start, root - window + 1), root + count, split)
    splits = len(edges) - 1
    lanes = 8 if dim > 128 else 4
    threads = min(THREADS, -(-packed * lanes // 32) * 32)
    partial, norms = launcher(
        SOURCE,
        [
            q.reshape(len(keys), packed, dim),
            keys,
            values,
            rows.sees,
            rows.depths,
            mx.array(edges, mx.int32),
            mx.array([rows.context, rows.start, window], mx.int32),
            mx.array([scores.scale, scores.cap], mx.float32),
        ],
        template=[
            ("Hkv", len(keys)),
            ("D", dim),
            ("Capped", scores.cap > 0),
        ],
        grid=(-(-packed * lanes // threads) * threads, splits, len(keys)),
        threadgroup=(threads, 1, 1),
        output_shapes=[(splits, len(keys), packed, dim), (splits, len(keys), packed, 2)],
        output_dtypes=[mx.float32, mx.float32],
    )
    sinks = mx.full((heads,), NO_SINK) if scores.sinks is None else scores.sinks.astype(mx.float32)
    (out,) = launcher(
        COMBINE,
        [partial, norms, sinks],
        template=[("OutT", q.dtype), ("Hkv", len(keys)), ("D", dim)],
        grid=(dim, heads * count, 1),
        threadgroup=(dim, 1, 1),
        output_shapes=[q.shape],
        output_dtypes=[q.dtype],
    )
    return out


def edges_between(first: int, end: int, split: int) -> list[int]:
    """Where the splits that hold positions `first` to `end` - 1 begin, and where the last ends.

    But for `first` itself they depend on no other position: that is why a row's sums do not.
    """
    edges, edge = [first], 0
    while edge < end:
        edge += split if edge < SHORT * split else 4 * split
        if edge > first:
            edges.append(edge)
    return edges


def fits(q: mx.array, keys: mx.array, values: mx.array, rows: Rows, scores: Scores) -> bool:
    """Up to 64 rows, heads of 32 to 256 as listed, keys and values of one shape and dtype."""
    return (
        len(rows.paths) <= ROWS
        and q.shape[2] in DIMS
        and keys.shape == values.shape
        and keys.dtype == values.dtype
        and keys.dtype in FLOATS
        and q.dtype in FLOATS
    )


OP = Op("verify_attention", reference, launch, fits)
