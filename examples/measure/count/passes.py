"""A whole target pass: the rows' embeddings, every layer and the logits of every row."""

from dataclasses import dataclass

from .chips import CHIPS, Chip, chip_named
from .layers import attention, feed_forward, linear_attention, mixture, norm, residual
from .models import MODELS, Model
from .operations import embed
from .products import linear, weights
from .tape import Array, Tape

ROWS = (1, 2, 4, 8, 12, 16)
CONTEXT = 1024  # tokens in the cache before the pass
COUNTED = tuple(chip_named(name) for name in ("M1", "M4", "M5"))


@dataclass(frozen=True, slots=True)
class Count:
    """What a pass costs. read, written and least in bytes; buffers: command buffers.

    least: the bytes that any kernel has to read, each once: weights, caches and states. Of a
    mixture's experts, as many as so many rows take on average.
    """

    dispatches: int
    read: float
    written: int
    buffers: int
    least: float


def taped(model: Model, chip: Chip, rows: int, context: int = CONTEXT) -> Tape:
    """The dispatches of mlx-lm's model over `rows` tokens, by MLX's own kernels.

    The caches hold `context` tokens and have room for the rows.
    """
    tape = Tape(chip)
    table = weights(model.hidden, model.vocabulary, model.bits)
    x = embed(tape, table.parts, Array(rows, 4), hidden=model.hidden, rows=rows)
    for layer in range(model.layers):
        inner = norm(tape, x, model.hidden)
        own = model.recurrence
        if own is None or (layer + 1) % own.interval == 0:
            new = attention(tape, inner, model, rows, context)
        else:
            new = linear_attention(tape, inner, model, own, rows)
        x = residual(tape, x, new)
        inner = norm(tape, x, model.hidden)
        if model.mixture:
            new = mixture(tape, inner, model, model.mixture, rows)
        else:
            new = feed_forward(tape, inner, model, rows)
        x = residual(tape, x, new)
    x = norm(tape, x, model.hidden)
    linear(tape, x, weights(model.hidden, model.vocabulary, model.bits), rows)
    return tape


def count(model: Model, chip: Chip, rows: int, context: int = CONTEXT) -> Count:
    """What a pass costs."""
    tape = taped(model, chip, rows, context)
    least = least_read(model, rows, context)
    return Count(len(tape.dispatches), tape.read, tape.written, tape.buffers, least)


def least_read(model: Model, rows: int, context: int = CONTEXT) -> float:
    """Bytes that any kernel has to read."""
    inner = model.heads * model.size
    kv_inner = model.kv_heads * model.size
    queries = inner * (2 if model.recurrence else 1)
    attending = _matrices(model, (queries, kv_inner, kv_inner), inner)
    layers = model.attention_layers
    least = layers * attending
    least += layers * 2 * kv_inner * context * 2  # keys and values
    if own := model.recurrence:
        others = model.layers - layers
        outputs = own.channels, own.values, own.value_heads, own.value_heads
        state = own.value_heads * own.size * own.size * 4
        window = (2 * own.window - 1) * own.channels * 2
        least += others * (_matrices(model, outputs, own.values) + state + window)
    if mixed := model.mixture:
        expert = 3 * weights(model.hidden, mixed.width, model.bits).bytes
        router = weights(model.hidden, mixed.experts, 8 if model.bits else None).bytes
        least += model.layers * (mixed.distinct(rows) * expert + router)
    else:
        least += model.layers * 3 * weights(model.hidden, model.width, model.bits).bytes
    return least + weights(model.hidden, model.vocabulary, model.bits).bytes


def _matrices(model: Model, outputs: tuple[int, ...], inner: int) -> int:
    """Bytes of the matrices out of the hidden state, and of the one back into it."""
    sizes = [weights(model.hidden, one, model.bits).bytes for one in outputs]
    return sum(sizes) + weights(inner, model.hidden, model.bits).bytes


def points() -> tuple[tuple[Model, Chip, int], ...]:
    """The passes counted: four models on three chips at six widths."""
    return tuple((model, chip, rows) for model in MODELS for chip in COUNTED for rows in ROWS)


__all__ = ["CHIPS", "COUNTED", "MODELS", "ROWS", "Count", "count", "least_read", "points", "taped"]
