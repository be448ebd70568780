"""A drafter of DFlash, DFlash 2 or DSpark: checked against its target, then loaded."""

import mlx.core as mx

from dflash_mlx.drafters.weights import (
    WRONG_PAIR,
    check_fit,
    check_tensors,
    load_weights,
    own_parts,
    read_safetensors,
    used,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import MASK_FILE, Checkpoint, torch_file_error
from dflash_mlx.models.precision import cast, is_quantised
from dflash_mlx.models.target import Target

from .config import ASSISTANT_NAMES, DraftConfig, parse
from .drafter import DFlashDrafter
from .model import DraftModel

ROWS = 32  # rows of a matrix by which a copy is told
APART = 0.02  # of their size, which rounding leaves
QUANTISED_APART = 0.3  # the same of 4 bits and more; other matrices are 1.4 apart


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    return checkpoint.format in ("dflash", "dflash2", "dspark")


def check(checkpoint: Checkpoint, target: Checkpoint) -> None:
    config = parse(checkpoint.config)
    theirs = target.text_config
    layers = theirs["num_hidden_layers"]
    sizes = (
        ("hidden size", config.hidden_size, theirs["hidden_size"]),
        ("vocabulary", config.vocab_size, theirs["vocab_size"]),
        ("layer count", config.num_target_layers or layers, layers),
    )
    check_fit(checkpoint.name, target, sizes, config.target_layer_ids)
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise DFlashError(
            f"drafter '{checkpoint.name}' has the mask token {config.mask_token_id}, outside its "
            f"vocabulary of {config.vocab_size}.",
            hint=WRONG_PAIR,
        )
    if (checkpoint.path / MASK_FILE).exists():
        raise torch_file_error(checkpoint.name, MASK_FILE)
    shapes = used({name: found.shape for name, found in checkpoint.tensors.items()}, plain_name)
    own = own_parts(shapes)
    check_tensors(checkpoint, lambda: DraftModel(config, theirs["hidden_size"], own), shapes)


def load(checkpoint: Checkpoint, target: Target, bits: int = 0) -> DFlashDrafter:
    config = parse(checkpoint.config)
    weights = used(read_safetensors(checkpoint), plain_name)
    for name in copied_parts(weights, config, target):
        del weights[f"{name}.weight"]
    model = DraftModel(config, target.hidden_size, own_parts(weights))
    load_weights(checkpoint, model, weights, bits)
    target.tap(config.target_layer_ids)
    return DFlashDrafter(model, target.embed, target.head, target.head_type)


def copied_parts(
    weights: dict[str, mx.array], config: DraftConfig, target: Target
) -> tuple[str, ...]:
    """The parts that are copies of the target's, but for its quantisation; told by a few rows.

    DeepSpec saves both with its drafters; they would be kept and read twice.
    """
    pairs = dict[str, tuple[mx.array, mx.array]]()
    step = max(1, config.vocab_size // ROWS)
    ids = mx.array([config.mask_token_id, *range(0, config.vocab_size, step)])
    if (table := weights.get("embed_tokens.weight")) is not None:
        pairs["embed_tokens"] = table[ids] * config.own_embedding_scale, target.embed(ids)
    head = weights.get("lm_head.weight")
    if head is not None and not config.draft_vocab_size:
        rows = mx.random.normal((ROWS, config.hidden_size), key=mx.random.key(0))
        rows = cast(rows, target.head_type)
        pairs["lm_head"] = rows @ head[ids].T, target.head(rows)[:, ids]
    limit = QUANTISED_APART if is_quantised(target.model) else APART
    return tuple(name for name, both in pairs.items() if apart(*both) < limit)


def apart(ours: mx.array, theirs: mx.array) -> float:
    """The largest distance of two rows, relative to the size of the second; [N, ...] each."""
    theirs = theirs.astype(mx.float32)
    distance = mx.linalg.norm(ours.astype(mx.float32) - theirs, axis=-1)
    return float(mx.max(distance / (mx.linalg.norm(theirs, axis=-1) + 1e-9)))


def plain_name(name: str) -> str:
    """A tensor's name in Z Lab's checkpoints: some exports add a prefix, Meta's has other names."""
    name = name.removeprefix("model.").removeprefix("logit_head.")
    return ASSISTANT_NAMES.get(name, name)
