"""A drafter of DFlash, DFlash 2 or DSpark: checked against its target, then loaded."""

from collections.abc import Iterable

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.drafters.weights import (
    UNUSED,
    checked_distances,
    load_weights,
    model_shapes,
    read_safetensors,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import (
    MASK_FILE,
    Checkpoint,
    compare_shapes,
    torch_file_error,
)
from dflash_mlx.models.precision import cast, is_quantised
from dflash_mlx.models.target import Target

from .config import ASSISTANT_NAMES, DraftConfig, parse
from .drafter import DFlashDrafter
from .model import OWN, DraftModel

ROWS = 32  # rows of a matrix by which a copy is told
APART = 0.02  # of their size, which rounding leaves
QUANTISED_APART = 0.3  # the same of 4 bits and more; other matrices are 1.4 apart


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    return checkpoint.format in ("dflash", "dflash2", "dspark")


def check(checkpoint: Checkpoint, target: Checkpoint) -> None:
    config = parse(checkpoint.config)
    check_fit(config, checkpoint.name, target)
    check_tensors(checkpoint, config, target.text_config["hidden_size"])


def load(
    checkpoint: Checkpoint,
    target: Target,
    tokenizer: TokenizerWrapper | None = None,
    *,
    bits: int = 0,
    trust_remote_code: bool = False,
) -> DFlashDrafter:
    config = parse(checkpoint.config)
    tensors = read_safetensors(checkpoint)
    weights = {plain_name(name): value for name, value in tensors.items()}
    for name in copied_parts(weights, config, target):
        del weights[f"{name}.weight"]
    model = DraftModel(config, target.hidden_size, own_parts(weights))
    if config.draft_vocab_size:
        weights["d2t"] = checked_distances(weights["d2t"], config.vocab_size, checkpoint.path)
    used = {name: value for name, value in weights.items() if name not in UNUSED}
    load_weights(model, used, bits)
    target.tap(config.target_layer_ids)
    return DFlashDrafter(model, target.embed, target.head, target.head_type)


def tensor_shapes(checkpoint: Checkpoint) -> dict[str, list[int]]:
    """The shapes of the tensors that drafting reads, by their names in Z Lab's checkpoints."""
    shapes = {plain_name(name): tensor.shape for name, tensor in checkpoint.tensors.items()}
    return {name: shape for name, shape in shapes.items() if name not in UNUSED}


def own_parts(names: Iterable[str]) -> frozenset[str]:
    """The parts that a drafter with these tensors does not share with its target."""
    return OWN & {name.split(".")[0] for name in names}


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


def check_fit(draft: DraftConfig, name: str, target: Checkpoint) -> None:
    """Raise DFlashError unless the drafter `name` can share the target's embedding and head."""
    hint = "use the drafter that was trained for this target; `dflash models list` shows the pairs"
    config = target.text_config
    layers = config["num_hidden_layers"]
    for what, wanted, has in (
        ("hidden size", draft.hidden_size, config["hidden_size"]),
        ("vocabulary", draft.vocab_size, config["vocab_size"]),
        ("layer count", draft.num_target_layers or layers, layers),
    ):
        if wanted != has:
            raise DFlashError(
                f"drafter '{name}' expects a target with {what} {wanted}, "
                f"'{target.name}' has {has}.",
                hint=hint,
            )
    if not all(0 <= number < layers for number in draft.target_layer_ids):
        raise DFlashError(
            f"drafter '{name}' taps the layers {list(draft.target_layer_ids)}, "
            f"'{target.name}' has {layers}.",
            hint=hint,
        )
    if not 0 <= draft.mask_token_id < draft.vocab_size:
        raise DFlashError(
            f"drafter '{name}' has the mask token {draft.mask_token_id}, outside its "
            f"vocabulary of {draft.vocab_size}.",
            hint=hint,
        )


def check_tensors(checkpoint: Checkpoint, config: DraftConfig, target_hidden_size: int) -> None:
    """Raise DFlashError for a tensor that is missing, has another shape, or is not known."""
    if (checkpoint.path / MASK_FILE).exists():
        raise torch_file_error(checkpoint.name, MASK_FILE)
    shapes = tensor_shapes(checkpoint)
    own = own_parts(shapes)
    wanted = model_shapes(lambda: DraftModel(config, target_hidden_size, own))
    compare_shapes(checkpoint.path, wanted, shapes)
