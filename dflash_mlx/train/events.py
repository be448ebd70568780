"""What a training run tells its caller while it works. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswersProgress:
    """The target is answering prompts: `done` of `total`, `tokens` written in `seconds`."""

    done: int
    total: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """Ready to train.

    sequences, held_out: how many prompts are trained on and measured on; dropped: those left out
    because no answer fits into the length limit. steps, first_step: the whole run and where this
    one begins. cache_bytes: memory that the taps may take.
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


@dataclass(frozen=True, slots=True)
class StepDone:
    """One optimiser step of `steps`, its weighted cross-entropy in nats, and what it learned from.

    `seconds` is the step's own time; `rate` the learning rate it used.
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
    """Acceptance length τ on the held-out prompts, with the counts behind it."""

    step: int
    tau: float
    verifies: int
    accepted_by_position: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint to resume from was written; the drafter folder holds the same weights."""

    step: int
    path: str


Event = AnswersProgress | Prepared | StepDone | Measured | Saved
