"""The small operations: one kernel each, and the copies that MLX makes of strided inputs."""

from .tape import Array, Tape


def copy(tape: Tape, x: Array, *, op: str = "Copy", more: bool = False) -> Array:
    """A contiguous copy: one dispatch (copy.cpp, copy_gpu_inplace)."""
    return tape.launch(op, [x], Array(x.elements, x.itemsize), more=more)


def elementwise(
    tape: Tape,
    op: str,
    taken: list[Array],
    *,
    elements: int = 0,
    itemsize: int = 2,
    donor: Array | None = None,
) -> Array:
    """One dispatch for a unary, binary or ternary op, or for what mx.compile made one of.

    (unary.cpp, binary.cpp, ternary.cpp, compiled.cpp.) donor: the input in whose buffer it writes.
    """
    given = Array(elements or taken[0].elements, itemsize, base=donor.buffer if donor else None)
    return tape.launch(op, taken, given)


def rms_norm(tape: Tape, x: Array, weight: Array | None, *, donor: bool = False) -> Array:
    """One dispatch, and a copy before it if the rows do not lie one behind another.

    (normalization.cpp, RMSNorm::eval_gpu, set_output.)
    """
    source = x if x.contiguous else copy(tape, x, more=True)
    shared = source if donor or source is not x else None
    given = Array(x.elements, base=shared.buffer if shared else None)
    return tape.launch("RMSNorm", [source, *([weight] if weight else [])], given)


def rope(tape: Tape, x: Array, *, rows: int, partial: bool) -> Array:
    """One dispatch over heads by rows, and a copy before it where only a part of a head turns.

    One row lies in order and is turned in place. (rope.cpp, RoPE::eval_gpu; copy.cpp, copy_gpu:
    an input that nothing else holds is donated instead of copied.)
    """
    if rows == 1:
        return tape.launch("RoPE", [x], x.view())
    if not partial:
        return tape.launch("RoPE", [x], Array(x.elements))
    # The kernel then reads and writes the turned part of its output.
    copied = copy(tape, x, more=True)
    return tape.launch("RoPE", [copied], copied.view())


def reshape_heads(tape: Tape, x: Array, *, rows: int) -> Array:
    """Rows by heads out of heads by rows: a copy, unless of one row (copy.cpp, reshape_gpu)."""
    return x.view() if rows == 1 else copy(tape, x, op="Reshape")


def update_cache(tape: Tape, cache: Array, new: Array) -> None:
    """Write rows into a cache in place: one dispatch (indexing.cpp, SliceUpdate::eval_gpu).

    The old cache is donated, so that nothing of it is copied (copy.cpp, copy_gpu).
    """
    tape.launch("SliceUpdate", [new], cache.view(new.elements, span=cache.elements))


def embed(tape: Tape, table: "tuple[Array, ...]", ids: Array, *, hidden: int, rows: int) -> Array:
    """The rows of the vocabulary: a Gather of each part of the table, then one to dequantise.

    (mlx.nn.QuantizedEmbedding; indexing.cpp, Gather::eval_gpu; quantized.cpp, quantize_impl.)
    table: the parts of a quantised table, or the one table in bfloat16.
    """
    vocabulary = table[-1].elements * (64 if len(table) > 1 else 1) // hidden
    parts = []
    for part in table:
        given = Array(part.elements // vocabulary * rows, part.itemsize)
        parts.append(tape.launch("Gather", [part, ids], given, read=given.bytes + ids.bytes))
    if len(parts) == 1:
        return parts[0]
    return tape.launch("Dequantize", parts, Array(rows * hidden))
