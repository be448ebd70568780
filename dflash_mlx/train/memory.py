"""An estimate of the memory and disk that a training run needs. Not an upper bound."""

import shutil
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.errors import DFlashError
from dflash_mlx.models.cache.sizes import cache_bytes
from dflash_mlx.models.target import Target

from .events import MemoryEstimate, gib
from .loss import MAX_LOGITS
from .settings import AnswerSettings, TrainSettings

FLOAT32_BYTES = 4
LOGIT_COPIES = 4  # of one slice: logits, probabilities, and their gradients
SCORE_COPIES = 4  # of one layer's attention scores, forward and backward
HIDDEN_COPIES = 14  # arrays [rows, H] that a layer keeps for its backward pass
MLP_COPIES = 5  # arrays [rows, width of the MLP]


class BlockSizes(NamedTuple):
    rows: int  # of a block
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int


def estimate_memory(
    target: Target,
    sizes: BlockSizes,
    taps: int,
    parameters: int,
    prompt_lengths: list[int],
    settings: TrainSettings,
    answers: AnswerSettings,
    streams: int,
) -> MemoryEstimate:
    """taps: the number of target layers that are read. parameters: those that are trained."""
    arrays: list[tuple[str, mx.array]] = tree_flatten(target.model.parameters())  # type: ignore
    taps_width = taps * target.hidden_size
    lengths = [min(settings.max_length, n + answers.max_tokens) for n in prompt_lengths]
    disk = 2 * taps_width * sum(lengths)
    rows = min(max(lengths), target.context_length)
    steps = step_bytes(target, sizes, parameters, rows, taps_width, settings, streams)
    # One batch of answers: caches, taps, and logits.
    longest = min(target.context_length, max(prompt_lengths) + answers.max_tokens)
    cache = cache_bytes(target.caches, longest, (target.head_type or mx.float32).size)
    answer = cache + 2 * longest * taps_width + 3 * target.vocab_size * FLOAT32_BYTES
    return MemoryEstimate(
        target=sum(array.nbytes for _, array in arrays),
        answers=round(min(answers.answer_batch, len(prompt_lengths)) * answer),
        steps=steps + min(settings.cache_taps << 20, disk),
        disk=disk,
    )


def step_bytes(
    target: Target,
    sizes: BlockSizes,
    parameters: int,
    rows: int,
    taps_width: int,
    settings: TrainSettings,
    streams: int,
) -> int:
    """Bytes that steps need: weights, optimiser, gradients, taps, and a chunk per stream.

    Excludes the taps kept in memory. rows: of the longest context. taps_width: K * Ht.
    """
    item = 2 if settings.compute == "bfloat16" else FLOAT32_BYTES
    weights = FLOAT32_BYTES * parameters
    cast = 2 * item * parameters if item < FLOAT32_BYTES else 0
    # Weights and two moments, and an update's copies; each stream's sum, next part, and cast.
    kept = 8 * weights + streams * (2 * weights + cast)
    taps = 2 * settings.batch * rows * taps_width * 2  # of this step, and read ahead for the next
    block_rows = settings.chunk * sizes.rows
    context = rows * (2 * taps_width + sizes.layers * 8 * sizes.kv_heads * sizes.head_dim)
    scores = SCORE_COPIES * block_rows * sizes.heads * (rows + sizes.rows)
    hidden = HIDDEN_COPIES * target.hidden_size
    mlp = MLP_COPIES * sizes.intermediate
    attention = 4 * sizes.heads * sizes.head_dim
    layers = sizes.layers * block_rows * (hidden + mlp + attention)
    logits = LOGIT_COPIES * FLOAT32_BYTES * min(MAX_LOGITS, block_rows * target.vocab_size)
    return kept + taps + streams * ((context + scores + layers) * item + logits)


def check_memory(estimate: MemoryEstimate, limit: int) -> None:
    """Raise DFlashError, with the numbers, if the run needs more than `limit` bytes."""
    if estimate.memory <= limit:
        return
    raise DFlashError(
        f"the run would need about {gib(estimate.memory)} of memory (target"
        f" {gib(estimate.target)}, answers {gib(estimate.answers)}, steps {gib(estimate.steps)}),"
        f" models may use {gib(limit)}.",
        hint="lower --answer-batch and --max-tokens for answers, --chunk, --batch, --cache-taps "
        "and --max-length for steps",
    )


def check_disk(folder: Path, needed: int) -> None:
    """Raise DFlashError, with the numbers, if the disk has no room for `needed` bytes of taps."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DFlashError(
            f"the taps need {gib(needed)} more on the disk of '{folder}', {gib(free)} are free.",
            hint="give a folder on another disk with --taps-folder, or fewer prompts",
        )
