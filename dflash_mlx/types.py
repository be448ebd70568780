"""The values that cross modules."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from .errors import UsageError

# How hard to think, where a chat template knows it: low, medium and high, and what some add.
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's next token is chosen; every field as mlx-lm's `make_sampler` and
    `make_logits_processors` mean it, in their order: penalties, top-p, min-p, top-k, temperature.

    `temperature` 0 takes the likeliest token. `top_p` 1, `top_k` 0, `min_p` 0,
    `repetition_penalty` 1 and the other penalties 0 are off. Penalties look at the last 20 tokens.
    `logit_bias` adds to the scores of tokens: pairs of id and bias. With a `seed` the same call
    gives the same tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for a value outside its range."""
        for name, value, fits, hint in (
            ("temperature", self.temperature, 0 <= self.temperature <= 100, "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 (off) to 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "above 0"),
            ("presence_penalty", self.presence_penalty, abs(self.presence_penalty) <= 100, "small"),
            (
                "frequency_penalty",
                self.frequency_penalty,
                abs(self.frequency_penalty) <= 100,
                "small",
            ),
            ("seed", self.seed, self.seed is None or 0 <= self.seed < 2**64, "0 or more"),
        ):
            if not fits:
                raise UsageError(f"{name} cannot be {value}.", hint=f"give a value that is {hint}")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn at random."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """Whether some tokens can never be drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the distribution of the next one."""
        off = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) == (1, 0, 0)
        return not off


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round verifies: `rows` of the target, the anchor's included.

    1 row is a plain step, without a draft. More are a chain of drafts, the first `rows` - 1 of the
    block that is drafted; or a `tree` of as many nodes, which with `chain_seed` has that chain in
    it.
    """

    rows: int
    tree: bool = False
    chain_seed: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token by the target, before penalties, filters and temperature.

    `top` are the likeliest tokens of its place with theirs, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens committed together: those of one verify, the prefill's one token, or a plain step's.

    `drafted` is how many drafts the verify checked (0 outside a verify), `depth` how many positions
    they were for, which is less where they were a tree, and `accepted` how many of `tokens` are
    drafts. `text` and `thinking` are what became readable with this block; a stop
    token has no text. `finish_reason` is None but in the last block: "stop" or "length".
    `logprobs` are those of the tokens, where they were asked for.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    text: str = ""
    thinking: str = ""
    finish_reason: str | None = None
    depth: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


# What long work tells those who watch it.

Progress = Callable[[int, int], None]  # what is done, and all


def silent(done: int, total: int) -> None:
    """Progress that nobody looks at."""
