"""The outcome of a verify pass: a small array that accept operations return and the host reads."""

import mlx.core as mx

from .source import DEVICE_MEMORY_SIZE, pad_small


def pack(has_nan: mx.array, accepted: mx.array, bonus: mx.array, drafts: mx.array) -> mx.array:
    """The outcome, int32 [γ + 3], from three arrays [] and the drafts [γ].

    [0]: 1 if a logit was NaN; the other entries are then undefined. [1]: the number of accepted
    drafts. [2]: the bonus token, which is the next anchor. [3:]: the drafts.
    """
    parts = (has_nan[None], accepted[None], bonus[None], drafts)
    return mx.concatenate([part.astype(mx.int32) for part in parts])


def count_prefix(flags: mx.array) -> mx.array:
    """The number of true flags before the first false one: [γ] -> []."""
    return mx.cumprod(flags.astype(mx.int32)).sum()


# As in accept.h: the division of the kernels' work, and their limits.
THREADS = 256
CHUNK = 4096
MAX_ROWS = 256
MAX_CHUNKS = 256
HEADERS = ("common.h", "accept.h")


def chunk_count(vocab: int) -> int:
    """The number of chunks of a row of `vocab` tokens; at least 8, of which some may be empty.

    MLX would put an input of fewer than 8 numbers into constant memory.
    """
    return max(DEVICE_MEMORY_SIZE, -(-vocab // CHUNK))


def ids(tokens: mx.array) -> mx.array:
    """Tokens as uint32, padded: MLX would compile another library for int32 inputs."""
    return pad_small(tokens.view(mx.uint32))


def fits(rows: mx.array, drafts: mx.array, *_: object) -> bool:
    """Whether the kernels support a block: rows [γ + 1, V] and drafts [γ], γ < 256, V <= 2^20."""
    floating = mx.issubdtype(rows.dtype, mx.floating)
    sizes = 0 < drafts.size < MAX_ROWS and chunk_count(rows.shape[-1]) <= MAX_CHUNKS
    return floating and sizes and rows.ndim == 2
