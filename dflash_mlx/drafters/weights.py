"""The weights of drafters: read from a checkpoint, checked, and loaded into their model."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.cpu.modules import use_cpu_modules
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.precision import float_type, quantise

from .network import OWN

WRONG_PAIR = "use one that was trained for this target; `dflash models list` shows the pairs"
WRONG_FILES = "the weights do not belong to this config.json: download the drafter again"
# Tensors of some exports that drafting does not read: the inverse of d2t, and copies of tensors of
# the target.
UNUSED = frozenset(
    {
        "t2d",
        "verifier_norm.weight",
        "verifier_lm_head.weight",
        "confidence_head.proj.weight",  # what was accepted tells more, and costs nothing to read
        "confidence_head.proj.bias",
    }
)


def read_safetensors(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """All tensors of a checkpoint, by name. Raises DFlashError as `Checkpoint.weight_files`."""
    tensors: dict[str, mx.array] = {}
    for file in checkpoint.weight_files:
        tensors.update(mx.load(str(file)))  # type: ignore[arg-type]
    return tensors


def used(tensors: dict[str, Any], plain_name: Callable[[str], str]) -> dict[str, Any]:
    """The entries that drafting reads, by their plain names."""
    plain = {plain_name(name): value for name, value in tensors.items()}
    ends = "rotary_emb.inv_freq"  # of the rotary embedding, which is computed
    return {k: v for k, v in plain.items() if k not in UNUSED and not k.endswith(ends)}


def own_parts(names: Iterable[str]) -> frozenset[str]:
    return OWN & {name.split(".")[0] for name in names}


def check_fit(
    name: str,
    target: Checkpoint,
    sizes: Iterable[tuple[str, object, object]],
    taps: Sequence[int] = (),
) -> None:
    """Raise DFlashError unless a drafter fits its target.

    sizes: what has to be equal, as the drafter `name` wants it, and as the target has it. taps: the
    layers that it reads.
    """
    for what, wanted, has in sizes:
        if wanted != has:
            raise DFlashError(
                f"drafter '{name}' expects a target with {what} {wanted}, '{target.name}' has "
                f"{has}.",
                hint=WRONG_PAIR,
            )
    layers = target.text_config["num_hidden_layers"]
    if not all(0 <= number < layers for number in taps):
        raise DFlashError(
            f"drafter '{name}' reads the hidden states of the layers {list(taps)}, "
            f"'{target.name}' has {layers}.",
            hint=WRONG_PAIR,
        )


def check_tensors(
    checkpoint: Checkpoint, make_model: Callable[[], Any], shapes: dict[str, list[int]]
) -> None:
    """Raise DFlashError for a tensor that is missing, has another shape, or is not known.

    make_model: makes the network that the config describes. shapes: of the tensors that are there.
    """
    try:
        parameters: Any = tree_flatten(make_model().parameters())
    except (ValueError, KeyError, TypeError) as error:  # mlx-lm does not know the rope scaling
        raise DFlashError(
            f"the drafter's config cannot be used ({first_line(error)}).",
            hint="use a drafter whose rope scaling mlx-lm knows",
        ) from error
    wanted = {name: list(value.shape) for name, value in parameters}
    for name in sorted(wanted.keys() | shapes.keys()):
        if name not in shapes:
            problem = f"the drafter in '{checkpoint.path}' has no tensor '{name}'."
        elif name not in wanted:
            problem = f"the drafter in '{checkpoint.path}' has an unknown '{name}'."
        elif wanted[name] != shapes[name]:
            problem = f"the drafter's '{name}' is {shapes[name]}, its config says {wanted[name]}."
        else:
            continue
        raise DFlashError(problem, hint=WRONG_FILES)


def checked_distances(d2t: mx.array, vocab_size: int, path: Path) -> mx.array:
    """`d2t` as int32. Raises DFlashError unless each entry leads to another target token."""
    tokens = np.array(d2t).astype(np.int64) + np.arange(d2t.size)
    if len(np.unique(tokens)) < d2t.size or tokens.min() < 0 or tokens.max() >= vocab_size:
        raise DFlashError(
            f"the 'd2t' of the drafter in '{path}' does not lead into the target's vocabulary.",
            hint="download the drafter again",
        )
    return d2t.astype(mx.int32)


def load_weights(
    checkpoint: Checkpoint,
    model: nn.Module,
    weights: dict[str, mx.array],
    bits: int,
    *,
    entry: str = "fc",
) -> None:
    """Load weights into a drafter's model, in one dtype, and quantise it unless `bits` is 0.

    The dtype is that of its layer `entry`, unless its quantisation takes any. Raises DFlashError
    for a wrong vocabulary of its own.
    """
    if "d2t" in model:
        config: Any = model.config
        weights["d2t"] = checked_distances(weights["d2t"], config.vocab_size, checkpoint.path)
    model.load_weights(list(weights.items()))
    # A norm or a mask row in float32 would make everything after it float32.
    if (kind := float_type(model[entry])) is not None:
        model.set_dtype(kind)
    quantise(model, bits)
    use_cpu_modules(model)
    model.eval()
    mx.eval(model.parameters())
