"""The settings of a training run, each declared once. Flags of `dflash train` are made from these.

This module does not import MLX: the command line reads it at every start.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

from dflash_mlx.errors import UsageError
from dflash_mlx.options import check_values, option

Dtype = Literal["bfloat16", "float32"]
Kind = Literal["dflash", "mtp"]
BLOCKS: dict[Kind, int] = {"dflash": 16, "mtp": 4}  # tokens in a block, unless another is given
DFLASH_ONLY = ("layers", "taps", "dflash2", "selector_rank", "draft_vocab")


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How the target answers the training prompts. Raises UsageError for an invalid value."""

    max_tokens: int = option(
        1024, "Maximum length of each answer in tokens.", flag="--max-tokens", low=1, panel="Data"
    )
    temperature: float = option(
        0.0, "Temperature of the answers; 0 is greedy.", flag="--temp", low=0, panel="Data"
    )
    answer_batch: int = option(
        64, "Answers made at the same time.", flag="--answer-batch", low=1, panel="Advanced"
    )
    seed: int = option(0, low=0)

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """The kind and the size of a new drafter; None takes the target's value.

    layers None: a quarter of the target's, at most 5. taps: the number of target layers whose
    outputs the drafter reads, or their ids. DFlash paper, section 4.1: 5 layers, 5 taps, block 16.
    An MTP head has one layer, and reads the target's final norm. Raises UsageError for a size below
    1, and for one that the kind does not have.
    """

    kind: Kind = option(
        "dflash",
        "dflash, or mtp: a head of one layer.",
        flag="--kind",
        noun="kind of drafter",
        panel="Drafter",
    )
    layers: int | None = option(
        None,
        "Layers of the drafter.",
        flag="--layers",
        low=1,
        unless_given="5; small targets fewer",
        panel="Drafter",
    )
    block_size: int | None = option(
        None,
        "Tokens in a block: the last token and its drafts.",
        flag="--block-size",
        unless_given="16; mtp 4",
        panel="Drafter",
    )
    taps: int | tuple[int, ...] = 5
    heads: int | None = option(
        None,
        "Attention heads.",
        flag="--heads",
        low=1,
        unless_given="the target's",
        panel="Drafter",
    )
    kv_heads: int | None = option(
        None,
        "Heads of keys and values.",
        flag="--kv-heads",
        low=1,
        unless_given="the target's",
        panel="Drafter",
    )
    head_dim: int | None = option(
        None,
        "Size of a head.",
        flag="--head-dim",
        low=1,
        unless_given="the target's",
        panel="Drafter",
    )
    intermediate: int | None = option(
        None,
        "Width of the MLP.",
        flag="--intermediate",
        low=1,
        unless_given="the target's",
        panel="Drafter",
    )
    dflash2: bool = option(
        False,
        "Add DFlash 2's convolutions and candidate selector.",
        flag="--dflash2",
        panel="Drafter",
    )
    selector_rank: int = option(
        256, "Size of a token's code in the selector.", flag="--selector-rank", panel="Advanced"
    )
    draft_vocab: int | None = option(
        None,
        "Draft only the N most frequent tokens of the answers.",
        flag="--draft-vocab",
        unless_given="all tokens",
        panel="Drafter",
    )

    def __post_init__(self) -> None:
        check_values(self)
        if self.kind == "dflash":
            return
        usual = {member.name: member.default for member in fields(self)}
        if given := [name for name in DFLASH_ONLY if getattr(self, name) != usual[name]]:
            flags = ", ".join("--" + name.replace("_", "-") for name in given)
            raise UsageError(
                f"an MTP head has no {flags}.",
                hint="leave that out, or train a DFlash drafter: --kind dflash",
            )

    @property
    def rows(self) -> int:
        """Tokens in a block."""
        return BLOCKS[self.kind] if self.block_size is None else self.block_size


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Hyper-parameters; defaults from the DFlash paper where it states them (section 4.1).

    `steps` takes precedence over `epochs`. `rate` is the peak learning rate, after a linear warm-up
    over the share `warmup` of the steps; then it falls to 0 as a cosine. The loss weights of slot k
    are exp(-(k - 1) / gamma) ("decay") or those of D-PACE. Raises UsageError for an invalid value.
    """

    epochs: int = option(6, "Passes over the prompts.", flag="--epochs", low=1, panel="Training")
    steps: int | None = option(
        None, "Optimiser steps, instead of --epochs.", flag="--steps", low=1, panel="Training"
    )
    batch: int = option(8, "Sequences per step.", flag="--batch", low=1, panel="Training")
    anchors: int = option(
        512, "Maximum blocks of a sequence per step.", flag="--anchors", low=1, panel="Advanced"
    )
    chunk: int = option(
        32, "Blocks in memory at the same time.", flag="--chunk", low=1, panel="Advanced"
    )
    rate: float = option(
        6e-4, "Peak learning rate.", flag="--lr", low=0, above=True, panel="Training"
    )
    warmup: float = 0.04
    clip: float = 1.0  # the largest norm of the gradient
    optimizer: Literal["muon", "adamw"] = option(
        "muon",
        "muon (for matrices, adamw for the rest), or adamw for all, as in the paper.",
        flag="--optimizer",
        noun="optimizer",
        panel="Training",
    )
    weight_decay: float = 0.0
    loss: Literal["decay", "dpace"] = option(
        "decay",
        "How positions in a block are weighted.",
        flag="--loss",
        noun="loss",
        panel="Training",
    )
    gamma: float | None = option(
        None,
        "Decay of the weights of positions.",
        flag="--gamma",
        low=0,
        above=True,
        unless_given="by block size",
        panel="Advanced",
    )
    max_length: int = option(
        3072,
        "Maximum length of a sequence in tokens.",
        flag="--max-length",
        low=2,
        panel="Training",
    )
    seed: int = option(
        0, "Seed of weights, order and blocks.", flag="--seed", low=0, panel="Training"
    )
    eval_every: int = option(
        200, "Steps between measurements of τ.", flag="--eval-every", low=1, panel="Advanced"
    )
    eval_prompts: int = 128
    save_every: int = option(
        200, "Steps between checkpoints.", flag="--save-every", low=1, panel="Advanced"
    )
    save_minutes: float = option(
        10.0,
        "Maximum minutes between checkpoints.",
        flag="--save-minutes",
        low=0,
        above=True,
        panel="Advanced",
    )
    cache_taps: int = option(
        2048,
        "Memory for the target's hidden states, in MiB.",
        flag="--cache-taps",
        panel="Advanced",
    )
    dtype: Dtype = option(
        "bfloat16",
        "Type of the saved drafter's weights.",
        flag="--dtype",
        noun="dtype",
        panel="Advanced",
    )
    compute: Dtype = option(
        "float32",
        "Type of the computation; bfloat16 is slow on a CPU.",
        flag="--compute",
        noun="type for steps",
        panel="Advanced",
    )

    def __post_init__(self) -> None:
        check_values(self)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of step 0 .. steps - 1: linear warm-up, then cosine decay to 0."""
        warm = max(1, round(self.warmup * steps))
        if step < warm:
            return self.rate * (step + 1) / warm
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def parse_taps(text: str) -> int | tuple[int, ...]:
    """A number of taps, or the ids of layers: "5", or "1,9,17". Raises UsageError."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--taps cannot be '{text}'.", hint="give 5, or ids: 1,9,17") from None
    return numbers if "," in text else numbers[0]
