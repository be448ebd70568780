"""Which drafts a greedy target keeps: its choice at every row of a block, and the prefix that fits.

The kernels read the logits once, in chunks of the vocabulary, in one dispatch; a second one puts
the chunks together.
"""

import mlx.core as mx

from . import outcome
from .dispatch import Op
from .outcome import HEADERS, THREADS
from .source import Launcher, Source

ARGMAX = Source("verify_accept_argmax", ("logits",), ("values", "places"), HEADERS)
PREFIX = Source("verify_accept_prefix", ("values", "places", "drafts"), ("outcome",), HEADERS)


def reference(logits: mx.array, drafts: mx.array) -> mx.array:
    """Logits [γ + 1, V] and drafts [γ] -> the outcome, int32 [γ + 3].

    A row's choice is `mx.argmax`, the first of equals; a NaN anywhere breaks the outcome.
    """
    return of_choices(mx.argmax(logits, axis=-1), drafts, mx.isnan(logits).any())


def of_choices(chosen: mx.array, drafts: mx.array, broken: mx.array) -> mx.array:
    """The outcome when the target chose [γ + 1] at its rows."""
    kept = outcome.count_prefix(chosen[:-1] == drafts)
    return outcome.pack(broken, kept, chosen[kept], drafts)


def launch(launcher: Launcher, logits: mx.array, drafts: mx.array) -> mx.array:
    """`reference` in two dispatches."""
    rows, vocab = logits.shape
    chunks = outcome.chunks_of(vocab)
    parts = launcher(
        ARGMAX,
        [logits],
        grid=(chunks * THREADS, rows, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows, chunks), (rows, chunks)],
        output_dtypes=[mx.float32, mx.uint32],
    )
    return launcher(
        PREFIX,
        [*parts, drafts],
        grid=(THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows + 2,)],
        output_dtypes=[mx.int32],
    )[0]


OP = Op("verify_accept", reference, launch, outcome.fits)
