"""The events that a training run reports to its caller. `seconds` is the time that work took."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of memory for the target's weights, and for answers and steps, which run in turn."""

    target: int
    answers: int
    steps: int
    disk: int  # of the taps, if every answer has the maximum length

    @property
    def memory(self) -> int:
        return self.target + max(self.answers, self.steps)


def gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


@dataclass(frozen=True, slots=True)
class AnswersProgress:
    done: int
    total: int
    tokens: int  # that were made; not those that were given and only verified
    seconds: float


@dataclass(frozen=True, slots=True)
class TapsProgress:
    """The target has read `done` of `total` tokens again for their taps."""

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Prepared:
    sequences: int
    held_out: int  # sequences
    dropped: int  # training prompts without room for an answer, or with one of fewer than 2 tokens
    parameters: int
    steps: int  # of the whole run
    first_step: int  # of this part of it
    mask_token_id: int | None  # None if the kind has none
    layer_ids: tuple[int, ...]  # the target's layers that are read, as `Target.tap` numbers them
    cache_bytes: int  # the memory budget of the target's hidden states
    plots: bool  # whether τ is drawn, which needs matplotlib


@dataclass(frozen=True, slots=True)
class StepDone:
    """One optimiser step of `steps`. loss: the weighted mean of the cross-entropies, in nats."""

    step: int
    steps: int
    loss: float
    rate: float
    gradient_norm: float
    blocks: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TauMeasured:
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


Event = MemoryEstimate | AnswersProgress | TapsProgress | Prepared | StepDone | TauMeasured | Saved
