"""Memory and disk that a training run will need, said before it begins. A forecast, not a bound."""

import shutil
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.drafters.dflash.config import DraftConfig
from dflash_mlx.errors import DFlashError
from dflash_mlx.models.memory import cache_bytes
from dflash_mlx.models.target import Target

from .answers import AnswerSettings
from .loss import MAX_LOGITS
from .settings import Forecast, TrainSettings

ITEM = 4  # bytes of a float32
LOGITS = 4  # copies of a slice's logits: as they are, as chances, and their slopes
SCORES = 4  # copies of one layer's attention scores, forward and backward
ROW_COPIES = 14  # hidden-sized arrays that a layer keeps a row for its backward pass
MLP_COPIES = 5  # arrays of the MLP's width


def forecast(
    target: Target,
    config: DraftConfig,
    parameters: int,
    prompts: list[int],
    settings: TrainSettings,
    answers: AnswerSettings,
    streams: int,
) -> Forecast:
    """What a run needs whose prompts have these lengths; `parameters`: of the drafter."""
    arrays: list[tuple[str, mx.array]] = tree_flatten(target.model.parameters())  # type: ignore
    weights = sum(array.nbytes for _, array in arrays)
    item = (target.head_type or mx.float32).size
    longest = min(target.context_length, max(prompts) + answers.max_tokens)
    rows = min(settings.max_length, longest)
    width = len(config.target_layer_ids)
    width *= target.hidden_size
    at_once = min(answers.batch, len(prompts))
    texts = at_once * (cache_bytes(target.config, longest, item) + 2 * longest * width)
    texts += 3 * at_once * target.vocab_size * ITEM
    lengths = [min(settings.max_length, count + answers.max_tokens) for count in prompts]
    disk = 2 * width * sum(lengths)
    steps = step_bytes(config, parameters, rows, width, settings, streams)
    cached = min(settings.cache_mb << 20, disk)
    return Forecast(target=weights, answers=round(texts), steps=steps + cached, disk=disk)


def step_bytes(
    config: DraftConfig,
    parameters: int,
    rows: int,
    width: int,
    settings: TrainSettings,
    streams: int,
) -> int:
    """Bytes that steps need: weights, optimiser, gradients, taps, and one slice of each stream.

    Taps that are kept in memory come on top.

    rows: of the longest context. width: K * Ht.
    """
    item = 2 if settings.compute == "bfloat16" else ITEM
    whole = ITEM * parameters
    # Weights and two moments, and an update's copies; each stream's sum, next part, and cast.
    kept = 8 * whole + streams * (2 * whole + (item < ITEM) * 2 * item * parameters)
    taps = 2 * settings.batch * rows * width * 2  # of this step, and read ahead for the next
    heads = config.num_heads
    kv = config.num_kv_heads
    dim = config.head_dim
    block_rows = settings.chunk * config.block_size
    context = rows * (2 * width + config.num_layers * 8 * kv * dim) * item
    scores = SCORES * block_rows * heads * (rows + config.block_size) * item
    layer = ROW_COPIES * config.hidden_size + MLP_COPIES * config.intermediate_size
    layers = config.num_layers * block_rows * (layer + 4 * heads * dim) * item
    logits = LOGITS * ITEM * min(MAX_LOGITS, block_rows * config.vocab_size)
    return kept + taps + streams * (context + scores + layers + logits)


def check_memory(found: Forecast, limit: int) -> None:
    """DFlashError, with the numbers, for a run that this machine's memory does not hold."""
    if found.memory <= limit:
        return
    raise DFlashError(
        f"the run would need about {gib(found.memory)} of memory (target {gib(found.target)},"
        f" answers {gib(found.answers)}, steps {gib(found.steps)}), models may use {gib(limit)}.",
        hint="lower --answer-batch and --max-tokens for answers, --chunk, --batch, --cache-taps "
        "and --max-length for steps",
    )


def check_disk(folder: Path, needed: int) -> None:
    """DFlashError, with the numbers, if the taps that are not stored yet do not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DFlashError(
            f"the taps need {gib(needed)} more on the disk of '{folder}', {gib(free)} are free.",
            hint="give a folder on another disk with --taps-folder, or fewer prompts",
        )


def gib(count: int) -> str:
    """Bytes as GiB."""
    return f"{count / 2**30:.1f} GiB"
