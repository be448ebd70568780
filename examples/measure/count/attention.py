"""Attention over a cache: which of MLX's three ways a shape goes, and what each launches."""

from dataclasses import dataclass
from typing import Literal

from .chips import Chip
from .operations import elementwise, reshape_heads
from .tape import Array, Tape

Way = Literal["vector", "full", "unfused"]


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of an attention: `queries` heads over `keys` heads of `size` elements."""

    queries: int
    keys: int
    size: int

    @property
    def shared(self) -> int:
        """Heads of queries that share one of keys."""
        return self.queries // self.keys


def way(heads: Heads, rows: int) -> Way:
    """How so many rows attend, by sizes of heads that these models have.

    (scaled_dot_product_attention.cpp, has_fused_kernel and use_fallback.)
    """
    if heads.size not in (64, 128, 256):
        raise ValueError(f"heads of {heads.size} elements are not counted")
    if rows <= 8:
        return "vector" if rows * heads.shared <= 32 else "unfused"
    return "unfused" if heads.size == 256 else "full"


def two_passes(chip: Chip, heads: Heads, length: int) -> bool:
    """Whether the vector kernel splits the keys (ScaledDotProductAttention::eval_gpu)."""
    return (chip.large and length >= 1024) or (heads.shared > 1 and length >= 4096)


def blocks(chip: Chip, heads: Heads, rows: int, length: int) -> int:
    """Parts of the keys in two passes (sdpa_vector_2pass)."""
    groups = heads.shared * rows
    if chip.size == "s":
        if length <= 1024 or groups <= 4:
            return 64
        return next((128 << i for i in range(3) if length <= (8192, 32768, 65536)[i]), 1024)
    if chip.size == "d":
        if groups <= 2 and length > 8192:
            return 256
        if groups >= 6 and length >= 16384:
            return 512 if length < 65536 else 1024
        return 128
    return 64 if groups >= 4 else 32


def attend(tape: Tape, query: Array, key: Array, value: Array, heads: Heads, rows: int) -> Array:
    """query [heads, rows, size], heads contiguous, over key and value: [rows, heads * size].

    key and value: views of the cache, each read once a dispatch.
    """
    length = key.elements // (heads.keys * heads.size)
    chosen = way(heads, rows)
    if chosen == "full":
        # It writes rows by heads itself, so that nothing is reshaped (eval_gpu, str_oH).
        return tape.launch("Attention", [query, key, value], Array(query.elements))
    if chosen == "unfused":
        out = _unfused(tape, query, key, value, heads, rows, length)
    elif two_passes(tape.chip, heads, length):
        out = _two_passes(tape, query, key, value, heads, rows, length)
    else:
        out = tape.launch("Attention", [query, key, value], query.view())
    return reshape_heads(tape, out, rows=rows)


def _two_passes(
    tape: Tape, query: Array, key: Array, value: Array, heads: Heads, rows: int, length: int
) -> Array:
    """Parts, their sums and maxima in float32, then one that combines them (sdpa_vector_2pass)."""
    parts = blocks(tape.chip, heads, rows, length)
    sums = heads.queries * rows * parts * 2
    partial = Array(query.elements * parts + sums * 2)  # in units of two bytes
    tape.launch("Attention", [query, key, value], partial, more=True)
    return tape.launch("Attention combine", [partial], query.view())


def _unfused(
    tape: Tape, query: Array, key: Array, value: Array, heads: Heads, rows: int, length: int
) -> Array:
    """Scale, keys, mask of three, choice, softmax, values (fast.cpp, fallback of attention).

    The heads that share keys are a batch of their own, so that no product is split
    (matmul.cpp, Matmul::eval_gpu).
    """
    scores = heads.queries * rows * length
    scaled = elementwise(tape, "Multiply", [query], donor=query)
    product = tape.launch("Matmul", [scaled, key], Array(scores))
    own = tape.launch("Arange", [], Array(rows, 4))
    all_keys = tape.launch("Arange", [], Array(length, 4))
    mask = elementwise(tape, "GreaterEqual", [own, all_keys], elements=rows * length, itemsize=1)
    chosen = elementwise(tape, "Select", [product, mask], donor=product)
    chance = tape.launch("Softmax", [chosen], chosen.view())
    return tape.launch("Matmul", [chance, value], Array(query.elements))
