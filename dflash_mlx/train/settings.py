"""The settings of a training run, each declared once. Flags of `dflash train` are made from these.

This module does not import MLX: the command line reads it at every start.
"""

import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

from dflash_mlx.errors import UsageError
from dflash_mlx.options import check_values, option

# ruff: noqa: RUF009 (the calls declare fields)

Dtype = Literal["bfloat16", "float32"]
Kind = Literal["dflash", "mtp"]
BLOCKS: dict[Kind, int] = {"dflash": 16, "mtp": 4}  # tokens in a block, unless another is given
# What may change when a run resumes: it changes no step.
MAY_CHANGE = {
    "answer_batch", "trust_remote_code", "eval_every", "eval_prompts", "save_every",
    "save_minutes", "cache_taps", "taps_folder", "dtype",
}  # fmt: skip
DFLASH_ONLY = ("layers", "taps", "dflash2", "selector_rank", "draft_vocab")

# An option under each heading of `--help`; its flag has the field's name.
data = partial(option, flag="--", panel="Data")
drafter = partial(option, flag="--", panel="Drafter")
training = partial(option, flag="--", panel="Training")
advanced = partial(option, flag="--", panel="Advanced")
size = partial(drafter, None, low=1, unless_given="the target's")


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How the target answers the training prompts. Raises UsageError for an invalid value."""

    max_tokens: int = data(1024, "Maximum length of each answer in tokens.", low=1)
    temperature: float = data(0.0, "Temperature of the answers; 0 is greedy.", flag="--temp", low=0)
    answer_batch: int = advanced(64, "Answers made at the same time.", low=1)
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

    kind: Kind = drafter("dflash", "dflash, or mtp: a head of one layer.", noun="kind of drafter")
    layers: int | None = drafter(
        None, "Layers of the drafter.", low=1, unless_given="5; small targets fewer"
    )
    block_size: int | None = drafter(
        None, "Tokens in a block: the last token and its drafts.", unless_given="16; mtp 4"
    )
    taps: str = drafter("5", "How many target layers the drafter reads, or which: 1,9,17.")
    heads: int | None = size("Attention heads.")
    kv_heads: int | None = size("Heads of keys and values.")
    head_dim: int | None = size("Size of a head.")
    intermediate: int | None = size("Width of the MLP.")
    dflash2: bool = drafter(False, "Add DFlash 2's convolutions and candidate selector.")
    selector_rank: int = advanced(256, "Size of a token's code in the selector.")
    draft_vocab: int | None = drafter(
        None, "Draft only the N most frequent tokens of the answers.", unless_given="all tokens"
    )

    def __post_init__(self) -> None:
        check_values(self)
        if not all(part.strip().lstrip("-").isdecimal() for part in self.taps.split(",")):
            raise UsageError(f"--taps cannot be '{self.taps}'.", hint="give 5, or ids: 1,9,17")
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
        return BLOCKS[self.kind] if self.block_size is None else self.block_size


@dataclass(frozen=True, slots=True)
class TrainJob:
    """The input and output of a training run. Raises UsageError for an invalid value."""

    prompts: Path
    out: Path
    val: Path | None = data(None, "JSONL of held-out prompts.")
    val_share: float = data(0.02, "Share of the prompts held out without --val.", low=0, high=0.99)
    answers: Path | None = data(
        None, "File with the target's answers.", unless_given="OUT/answers.jsonl"
    )
    taps_folder: Path | None = advanced(
        None, "Folder for the target's hidden states.", unless_given="OUT/taps"
    )
    warm_start: Path | None = drafter(None, "Start from this drafter, with its shape.")
    mask_token: int | None = advanced(None, "Id of the mask token.", unless_given="a free one")
    shape: DrafterShape = field(default_factory=DrafterShape)
    resume: bool = data(False, "Continue the run in --out, with its flags.")

    def __post_init__(self) -> None:
        check_values(self)
        shape = self.shape
        if shape.kind != "dflash" and self.mask_token is not None:
            raise UsageError("an MTP head has no mask token.", hint="leave --mask-token out")
        if self.warm_start is None:
            return
        kept = DrafterShape(shape.kind, dflash2=shape.dflash2, selector_rank=shape.selector_rank)
        other = replace(shape, block_size=shape.rows) != replace(kept, block_size=kept.rows)
        if other or self.mask_token is not None:
            raise UsageError(
                "--warm-start keeps the shape and the mask token of its drafter.",
                hint="leave its sizes out, or --warm-start",
            )

    @property
    def taps(self) -> Path:
        return self.taps_folder or self.out / "taps"

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Hyper-parameters; defaults from the DFlash paper where it states them (section 4.1).

    `steps` takes precedence over `epochs`. `rate` is the peak learning rate, after a linear warm-up
    over the share `warmup` of the steps; then it falls to 0 as a cosine. The loss weights of slot k
    are exp(-(k - 1) / gamma) ("decay") or those of D-PACE. Raises UsageError for an invalid value.
    """

    epochs: int = training(6, "Passes over the prompts.", low=1)
    steps: int | None = training(None, "Optimiser steps, instead of --epochs.", low=1)
    batch: int = training(8, "Sequences per step.", low=1)
    anchors: int = advanced(512, "Maximum blocks of a sequence per step.", low=1)
    chunk: int = advanced(32, "Blocks in memory at the same time.", low=1)
    rate: float = training(6e-4, "Peak learning rate.", flag="--lr", low=0, above=True)
    warmup: float = 0.04
    clip: float = 1.0  # the largest norm of the gradient
    optimizer: Literal["muon", "adamw"] = training(
        "muon",
        "muon (for matrices, adamw for the rest), or adamw for all, as in the paper.",
        noun="optimizer",
    )
    weight_decay: float = 0.0
    loss: Literal["decay", "dpace"] = training(
        "decay", "How positions in a block are weighted.", noun="loss"
    )
    gamma: float | None = advanced(
        None, "Decay of the weights of positions.", low=0, above=True, unless_given="by block size"
    )
    max_length: int = training(3072, "Maximum length of a sequence in tokens.", low=2)
    seed: int = training(0, "Seed of weights, order and blocks.", low=0)
    eval_every: int = advanced(200, "Steps between measurements of τ.", low=1)
    eval_prompts: int = 128
    save_every: int = advanced(200, "Steps between checkpoints.", low=1)
    save_minutes: float = advanced(10.0, "Maximum minutes between checkpoints.", low=0, above=True)
    cache_taps: int = advanced(2048, "Memory for the target's hidden states, in MiB.")
    dtype: Dtype = advanced("bfloat16", "Type of the saved drafter's weights.", noun="dtype")
    compute: Dtype = advanced(
        "float32", "Type of the computation; bfloat16 is slow on a CPU.", noun="type for steps"
    )

    def __post_init__(self) -> None:
        check_values(self)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of step 0 .. steps - 1: linear warm-up, then cosine decay to 0."""
        warm = max(1, round(self.warmup * steps))
        if step < warm:
            return self.rate * (step + 1) / warm
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
