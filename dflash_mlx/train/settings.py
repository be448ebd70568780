"""Settings of a training run, with validation."""

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from dflash_mlx.drafters.dflash.config import DFLASH2, default_layer_ids
from dflash_mlx.errors import UsageError
from dflash_mlx.files.formats import V1, V2
from dflash_mlx.models.target import Target

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


# The events that a training run reports to its caller.


@dataclass(frozen=True, slots=True)
class Forecast:
    """Bytes of memory: the target's weights, and what answers and steps need besides, in turn.

    disk: bytes of the taps at most, 2 a number, if every answer is as long as it may be.
    """

    target: int
    answers: int
    steps: int
    disk: int

    @property
    def memory(self) -> int:
        """The peak of the run."""
        return self.target + max(self.answers, self.steps)


@dataclass(frozen=True, slots=True)
class AnswersProgress:
    """The target has answered `done` of `total` prompts, and made `tokens` tokens in `seconds`.

    Tokens that were given and only verified are not counted.
    """

    done: int
    total: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TapsProgress:
    """The target has read `done` of `total` tokens again for their taps, in `seconds`."""

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """The run is ready to train.

    sequences, held_out: the numbers of training and evaluation prompts; dropped: those without room
    for an answer within the length limit. steps: of the whole run; first_step: where this one
    starts. cache_bytes: the memory budget of the target's hidden states. plots: whether τ is drawn,
    which needs matplotlib.
    """

    sequences: int
    held_out: int
    dropped: int
    parameters: int
    steps: int
    first_step: int
    mask_token_id: int
    layer_ids: tuple[int, ...]
    cache_bytes: int
    plots: bool


@dataclass(frozen=True, slots=True)
class StepDone:
    """One optimiser step of `steps`: its loss (weighted cross-entropy in nats) and its data.

    `seconds` is the time of the step, `rate` its learning rate.
    """

    step: int
    steps: int
    loss: float
    rate: float
    gradient_norm: float
    blocks: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Acceptance length τ on the held-out prompts, and its counts."""

    step: int
    tau: float
    verifies: int
    accepted_by_position: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint was written; the drafter folder holds the same weights."""

    step: int
    path: str


Event = Forecast | AnswersProgress | TapsProgress | Prepared | StepDone | Measured | Saved


# The `config.json` of a new drafter, with Z Lab's keys.


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a drafter; None takes the target's value.

    layers None: a quarter of the target's, at most 5. taps: the number of target layers whose
    outputs the drafter reads, or their ids. DFlash paper, section 4.1: 5 layers, 5 taps, block 16.
    dflash2: with convolutions and a candidate selector, whose codebooks have `selector_rank`
    numbers a token. draft_vocab: the tokens that can be drafted, None for all.
    """

    layers: int | None = None
    block_size: int = 16
    taps: int | tuple[int, ...] = 5
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    dflash2: bool = False
    selector_rank: int = 256
    draft_vocab: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a size below 1."""
        for name in ("layers", "heads", "kv_heads", "head_dim", "intermediate_size"):
            check_least(name, getattr(self, name), 1)


def layer_ids(target_layers: int, taps: int | tuple[int, ...]) -> tuple[int, ...]:
    """The target layers to read: the given ids, or `taps` layers by Z Lab's default rule."""
    if isinstance(taps, int):
        if taps < 1:
            raise UsageError("a drafter needs at least one tap.", hint="give --taps 5")
        ids = default_layer_ids(target_layers, min(taps, target_layers))
        return tuple(sorted({min(max(i, 0), target_layers - 1) for i in ids}))
    if not taps or len(set(taps)) < len(taps) or not all(0 <= i < target_layers for i in taps):
        raise UsageError(
            f"the taps {', '.join(map(str, taps))} are not layers of this target.",
            hint=f"name different layers from 0 to {target_layers - 1}",
        )
    return tuple(taps)


def draft_config(target: Target, shape: Shape, mask_token_id: int) -> dict[str, Any]:
    """The config of a drafter for a target, in Z Lab's layout.

    Raises UsageError for a shape that is not possible.
    """
    raw = {**target.config, **(target.config.get("text_config") or {})}
    heads = shape.heads or raw["num_attention_heads"]
    kv_heads = shape.kv_heads or min(heads, raw.get("num_key_value_heads") or heads)
    head_dim = shape.head_dim or raw.get("head_dim") or target.hidden_size // heads
    layers = shape.layers or min(5, max(1, target.layers // 4))
    rope = raw.get("rope_parameters") or {}
    if heads % kv_heads or head_dim % 2:
        raise UsageError(
            f"{heads} heads of size {head_dim} with {kv_heads} for keys and values do not fit.",
            hint="heads must be a multiple of --kv-heads and --head-dim even",
        )
    if shape.block_size < 2:
        raise UsageError("a block needs two positions at least.", hint="give --block-size 16")
    if (drafted := shape.draft_vocab) is not None:
        check_drafted(target, drafted, dflash2=shape.dflash2)
    nested: dict[str, Any] = {
        "mask_token_id": mask_token_id,
        "target_layer_ids": list(layer_ids(target.layers, shape.taps)),
        "block_size": shape.block_size,
    }
    if raw.get("final_logit_softcapping"):
        nested["final_logit_softcapping"] = raw["final_logit_softcapping"]
    if shape.dflash2:
        nested |= dflash2_entries(shape, target.hidden_size)
    return {
        "architectures": [V2 if shape.dflash2 else V1],
        **({"is_causal": False} if shape.dflash2 else {}),
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_id": raw.get("eos_token_id"),
        "pad_token_id": raw.get("pad_token_id"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size
        or raw.get("intermediate_size")
        or 3 * target.hidden_size,
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": target.context_length,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_target_layers": target.layers,
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
        "rope_scaling": None,
        "rope_theta": raw.get("rope_theta") or rope.get("rope_theta") or 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": target.vocab_size,
        **({} if drafted is None else {"draft_vocab_size": drafted}),
        "block_size": shape.block_size,
        "dflash_config": nested,
    }


def check_drafted(target: Target, count: int, *, dflash2: bool) -> None:
    """UsageError where a drafter cannot have a vocabulary of `count` tokens."""
    if dflash2:
        raise UsageError(
            "a DFlash 2 drafter has all tokens of its target.",
            hint="give --dflash2 or --draft-vocab",
        )
    if not len(target.eos_ids) <= count < target.vocab_size:
        raise UsageError(
            f"a drafter of this target cannot have {count:,} tokens of its own.",
            hint=f"give --draft-vocab from {len(target.eos_ids)} to {target.vocab_size - 1:,}",
        )


def dflash2_entries(shape: Shape, hidden_size: int) -> dict[str, Any]:
    """The additional entries of `dflash_config`; UsageError for a size that is not possible."""
    if hidden_size % DFLASH2["conv_group_size"] or shape.selector_rank < 1:
        raise UsageError(
            f"a DFlash 2 drafter of width {hidden_size} and rank {shape.selector_rank} is not"
            " possible.",
            hint=f"a multiple of {DFLASH2['conv_group_size']} as width, 1 or more as rank are",
        )
    return {**DFLASH2, "selector_rank": shape.selector_rank, "projector_type": "dflash2"}
