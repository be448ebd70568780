"""Settings of a training run, with validation."""

import math
from dataclasses import dataclass

import mlx.core as mx

from dflash_mlx.errors import UsageError

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Hyper-parameters; defaults from the DFlash paper where it states them (section 4.1).

    epochs, steps: length of the run; `steps` takes precedence. batch: sequences per step. anchors:
    maximum of blocks per sequence and step. chunk: blocks in one micro-batch. rate: peak learning
    rate, after a linear warm-up over the share `warmup` of the steps; then cosine decay to 0. clip:
    maximum norm of the gradient. optimizer: "muon" for the matrices, or "adamw" for all as in the
    paper. loss: "decay" (w_k = exp(-(k - 1) / gamma)) or "dpace". gamma None: by block size.
    eval_every, save_every: in steps; save_minutes: the longest time between two saves. cache_mb:
    MiB of target hidden states to keep in memory, as bfloat16. dtype: of the exported weights.
    compute: of what a step computes; weights and optimiser are float32 in any case.
    """

    epochs: int = 6
    steps: int | None = None
    batch: int = 8
    anchors: int = 512
    chunk: int = 32
    rate: float = 6e-4
    warmup: float = 0.04
    clip: float = 1.0
    optimizer: str = "muon"
    weight_decay: float = 0.0
    loss: str = "decay"
    gamma: float | None = None
    max_length: int = 3072
    seed: int = 0
    eval_every: int = 200
    eval_prompts: int = 128
    save_every: int = 200
    save_minutes: float = 10.0
    cache_mb: int = 2048
    dtype: str = "bfloat16"
    compute: str = "float32"

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid value."""
        for name in (
            "epochs",
            "batch",
            "anchors",
            "chunk",
            "eval_every",
            "save_every",
            "rate",
            "save_minutes",
            "gamma",
        ):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UsageError(f"{name} cannot be {value}.", hint="give 1 or more")
        check_least("steps", self.steps, 1)
        check_least("max_length", self.max_length, 2)
        check_least("seed", self.seed, 0)
        for name, choices in (
            ("loss", ("decay", "dpace")),
            ("optimizer", ("adamw", "muon")),
            ("dtype", tuple(DTYPES)),
            ("compute", tuple(DTYPES)),
        ):
            if getattr(self, name) not in choices:
                raise UsageError(
                    f"{name} cannot be '{getattr(self, name)}'.", hint=f"use {' or '.join(choices)}"
                )

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of step 0 .. steps - 1: linear warm-up, then cosine decay to 0."""
        warm = max(1, round(self.warmup * steps))
        if step < warm:
            return self.rate * (step + 1) / warm
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def check_least(name: str, value: float | None, least: int) -> None:
    """Raise UsageError for a value below the least one; None is a default."""
    if value is not None and value < least:
        raise UsageError(f"{name} cannot be {value}.", hint=f"give {least} or more")
