"""The settings of a benchmark run, and the interleaved order of its answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.types import SamplingParams

from .modes import BASELINE, Variant
from .questions import Question
from .record import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The settings of a run. Raises UsageError for invalid ones.

    `block_size` is for modes without a width (None: the drafter's); `think` and `effort` are
    options of the chat template (None: its default); `cooldown` is a pause in seconds before each
    answer.
    """

    modes: tuple[Variant, ...]
    temperatures: tuple[float, ...] = (0.0,)
    repeats: int = 1
    max_tokens: int = 256
    seed: int = 0
    block_size: int | None = None
    accept: str = "match"
    think: bool | None = None
    effort: str | None = None
    cooldown: float = 0.0

    def __post_init__(self) -> None:
        """Validate the settings."""
        for name, value, least in (
            ("repeats", self.repeats, 1),
            ("max_tokens", self.max_tokens, 1),
            ("cooldown", self.cooldown, 0),
        ):
            if value < least:
                raise UsageError(f"{name} cannot be {value}.", hint=f"give {least} or more")
        if not self.modes or not self.temperatures:
            raise UsageError("there is nothing to run.", hint="give a mode and a temperature")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise UsageError("a temperature was given twice.", hint="give each one once")
        fixed = [v.mode == BASELINE or (v.mode == "dflash" and v.width) for v in self.modes]
        if self.block_size and all(fixed):
            raise UsageError("no mode takes a block size.", hint="leave --block-size out")
        if self.accept != "match" and any(v.mode == "ddtree" for v in self.modes):
            raise UsageError(
                f"the acceptance rule '{self.accept}' judges chains, not trees.",
                hint="leave it at match, or leave ddtree out of --modes",
            )
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature, seed=self.seed)

    @property
    def has_baseline(self) -> bool:
        """Whether plain decoding is among the modes."""
        return Variant(BASELINE) in self.modes

    @property
    def switches(self) -> dict[str, Any]:
        """The options of the chat template, as keyword arguments of `Session.stream`."""
        return {"think": self.think, "reasoning_effort": self.effort}

    def keys(self, questions: Sequence[Question]) -> list[tuple[Key, Question, Variant]]:
        """The keys of all answers in the order of the run.

        The answers to one question are neighbours, so that a machine that slows down slows all
        modes. Each question and each repeat starts with another mode, and every few questions the
        order is reversed: a wide pass is slower right after plain steps, and this must not always
        hit the same mode.
        """
        found = []
        for repeat in range(self.repeats):
            for place, question in enumerate(questions):
                turn, first = divmod(place + repeat, len(self.modes))
                order = self.modes[first:] + self.modes[:first]
                for temperature in self.temperatures:
                    for variant in order[:: -1 if turn % 2 else 1]:
                        key = Key(
                            question.suite,
                            question.number,
                            question.digest,
                            variant.label,
                            temperature,
                            repeat + 1,
                        )
                        found.append((key, question, variant))
        return found

    def sampling(self, key: Key) -> SamplingParams:
        """The sampling parameters of an answer; each question and repeat has another seed."""
        if key.temperature == 0:
            return SamplingParams()
        seed = self.seed + 1000 * key.number + key.repeat
        return SamplingParams(temperature=key.temperature, seed=seed)


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Temperatures from comma-separated numbers. Raises UsageError for other text."""
    try:
        return tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise UsageError(f"temperatures cannot be '{text}'.", hint="give 0, or 0,1") from None
