"""What a verify came to, as one small array: accepting operations give it, the host reads it.

Knows neither logits nor rules.
"""

import mlx.core as mx


def pack(broken: mx.array, kept: mx.array, bonus: mx.array, drafts: mx.array) -> mx.array:
    """An outcome, int32 [γ + 3], from three arrays [] and the drafts [γ].

    [0] is 1 where something was no number, and then the rest means nothing; [1] how many drafts
    stay; [2] the bonus token, which is the next anchor; [3:] the drafts. Committed are the drafts
    that stay and the bonus token.
    """
    parts = (broken[None], kept[None], bonus[None], drafts)
    return mx.concatenate([part.astype(mx.int32) for part in parts])


def count_prefix(flags: mx.array) -> mx.array:
    """How many flags hold before the first that does not: [γ] -> []."""
    return mx.cumprod(flags.astype(mx.int32)).sum()


# What accept.h says too: how the kernels divide the work, and for which shapes.
THREADS, CHUNK, MAX_ROWS, MAX_CHUNKS = 256, 4096, 256, 256
HEADERS = ("common.h", "accept.h")


def chunks_of(vocab: int) -> int:
    """Into how many chunks a row of the vocabulary is divided."""
    return -(-vocab // CHUNK)


def fits(rows: mx.array, drafts: mx.array, *_: object) -> bool:
    """Whether the kernels take such a block: rows [γ + 1, V], drafts [γ]."""
    floating = mx.issubdtype(rows.dtype, mx.floating)
    sizes = 0 < drafts.size < MAX_ROWS and chunks_of(rows.shape[-1]) <= MAX_CHUNKS
    return floating and sizes and rows.ndim == 2
