"""Greedy acceptance: the longest prefix of drafts that equal the target's argmax, and the bonus.

The first kernel reads the logits once, in chunks of the vocabulary; the second one combines the
chunks.
"""

import mlx.core as mx

from . import outcome
from .dispatch import Op
from .outcome import HEADERS, THREADS
from .samples import Case, dtype_of, normal_array
from .shapes import Shapes
from .source import Launcher, Source, recorded

ARGMAX = Source("verify_accept_argmax", ("logits",), ("values", "places"), HEADERS)
PREFIX = Source("verify_accept_prefix", ("values", "places", "drafts"), ("outcome",), HEADERS)


def reference(logits: mx.array, drafts: mx.array) -> mx.array:
    """Logits [γ + 1, V] and drafts [γ] -> the outcome (see `outcome.pack`), int32 [γ + 3].

    Of equal logits the first wins, as in `mx.argmax`. A NaN anywhere sets the NaN flag.
    """
    return of_choices(mx.argmax(logits, axis=-1), drafts, mx.isnan(logits).any())


def of_choices(chosen: mx.array, drafts: mx.array, has_nan: mx.array) -> mx.array:
    """The outcome for the target's tokens [γ + 1], the drafts [γ] and the NaN flag []."""
    accepted = outcome.count_prefix(chosen[:-1] == drafts)
    return outcome.pack(has_nan, accepted, chosen[accepted], drafts)


def launch(launcher: Launcher, logits: mx.array, drafts: mx.array) -> mx.array:
    """As `reference`, in two dispatches."""
    return recorded(launcher, dispatch, len(logits))(logits, outcome.ids(drafts))


def dispatch(launcher: Launcher, logits: mx.array, drafts: mx.array) -> mx.array:
    """`launch`, recorded once for each number of rows; `drafts` are `outcome.ids`."""
    rows, vocab = logits.shape
    chunks = outcome.chunk_count(vocab)
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


def cases(shapes: Shapes) -> list[Case]:
    """One draft, more drafts than SIMD lanes, a NaN, infinities, and the model's sizes."""
    dtype = dtype_of(shapes.dtype)
    with_nan, drafts = greedy_case(3, 4103, dtype, 0)
    with_nan[2, 90] = mx.nan
    with_inf, others = greedy_case(3, 4103, dtype)
    with_inf[0, 1021] = mx.inf
    with_inf[1, 4099] = -mx.inf
    return [
        greedy_case(2, 9, dtype),
        greedy_case(11, 4103, dtype, 9),
        greedy_case(40, 33, dtype, 34),
        (with_nan, drafts),
        (with_inf, others),
        greedy_case(shapes.rows, shapes.vocab, dtype, shapes.rows // 2),
    ]


def greedy_case(rows: int, vocab: int, dtype: mx.Dtype, wrong: int | None = None) -> Case:
    """Logits [rows, vocab] with many ties, and drafts equal to their argmax except at `wrong`."""
    logits = mx.round(4 * normal_array(rows, rows, vocab)) / 4
    drafts = mx.argmax(logits[:-1], axis=-1)
    if wrong is not None:
        drafts[wrong] = (drafts[wrong] + 1) % vocab
    return logits.astype(dtype), drafts
