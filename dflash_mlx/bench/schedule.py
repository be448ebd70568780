"""The settings of a benchmark run, and the interleaved order of its answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from dflash_mlx.errors import UsageError
from dflash_mlx.options import (
    AcceptanceRule,
    GenerationOptions,
    Mode,
    SamplingParams,
    check_values,
    option,
)

from .questions import Question
from .records import Key

BASELINE = "baseline"
MODES = (BASELINE, *(mode for mode in get_args(Mode) if mode != BASELINE))
WIDTHS = {"dflash": ("block_size", 2, 256), "ddtree": ("tree_budget", 1, 1024)}


@dataclass(frozen=True, slots=True)
class Variant:
    """A mode. width: its block size or tree budget, as in "dflash:8"; None for the default."""

    mode: str
    width: int | None = None

    @property
    def label(self) -> str:
        return self.mode if self.width is None else f"{self.mode}:{self.width}"


def parse_modes(text: str) -> tuple[Variant, ...]:
    """Variants from comma-separated names. Raises UsageError for invalid ones."""
    variants = [variant_of(word) for word in words_of(text)]
    if not variants:
        raise UsageError("no mode was given.", hint=f"use {', '.join(MODES)}")
    refuse_twice("a mode", variants)
    return tuple(variants)


def variant_of(word: str) -> Variant:
    mode, colon, number = word.partition(":")
    if mode not in MODES:
        raise UsageError(
            f"there is no mode '{mode}'.",
            hint=f"use {', '.join(MODES)}, or one with its width, such as dflash:8",
        )
    if not colon:
        return Variant(mode)
    if mode not in WIDTHS:
        raise UsageError(f"the mode {mode} has no width.", hint=f"write {mode}")
    name, least, most = WIDTHS[mode]
    if not number.isdecimal() or not least <= int(number) <= most:
        raise UsageError(
            f"the {name} of '{word}' cannot be '{number}'.",
            hint=f"give a whole number from {least} to {most:,}",
        )
    return Variant(mode, int(number))


def words_of(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def refuse_twice(noun: str, values: Iterable[object]) -> None:
    values = list(values)
    if len(set(values)) < len(values):
        raise UsageError(f"{noun} was given twice.", hint="give each one once")


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Temperatures from comma-separated numbers. Raises UsageError for other text."""
    try:
        return tuple(map(float, words_of(text)))
    except ValueError:
        raise UsageError(f"temperatures cannot be '{text}'.", hint="give 0, or 0,1") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The settings of a run. Raises UsageError for invalid ones.

    `block_size` is for modes without a width (None: the drafter's); `think` and `effort` are
    options of the chat template (None: its default); `cooldown` is a pause in seconds before each
    answer.
    """

    modes: tuple[Variant, ...]
    temperatures: tuple[float, ...] = (0.0,)
    repeats: int = option(1, low=1)
    max_tokens: int = option(256, low=1)
    seed: int = 0
    block_size: int | None = None
    accept: AcceptanceRule = "match"
    think: bool | None = None
    effort: str | None = None
    cooldown: float = option(0.0, low=0)

    def __post_init__(self) -> None:
        check_values(self)
        if not self.modes or not self.temperatures:
            raise UsageError("there is nothing to run.", hint="give a mode and a temperature")
        refuse_twice("a temperature", self.temperatures)
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
        return Variant(BASELINE) in self.modes

    @property
    def switches(self) -> dict[str, Any]:
        return {"think": self.think, "reasoning_effort": self.effort}

    def keys(self, questions: Sequence[Question]) -> list[tuple[Key, Question, Variant]]:
        """The keys of all answers in the order of the run.

        The answers to one question are neighbours, so that a machine that slows down slows all
        modes. Each question and each repeat starts with another mode, and every few questions the
        order is reversed: a wide pass is slower right after plain steps, and this must not always
        hit the same mode.
        """
        keys = []
        for repeat in range(self.repeats):
            for index, question in enumerate(questions):
                cycle, first = divmod(index + repeat, len(self.modes))
                order = self.modes[first:] + self.modes[:first]
                name = (question.suite, question.number, question.digest)
                for temperature in self.temperatures:
                    for variant in order[:: -1 if cycle % 2 else 1]:
                        key = Key(*name, variant.label, temperature, repeat + 1)
                        keys.append((key, question, variant))
        return keys

    def options(self, key: Key, variant: Variant) -> GenerationOptions:
        """The options of an answer. Each question and repeat has another seed."""
        seed = self.seed + 1000 * key.number + key.repeat if key.temperature else None
        widths: dict[str, Any] = {}
        if variant.mode != BASELINE:
            widths["block_size"] = self.block_size
        if variant.width is not None:
            widths[WIDTHS[variant.mode][0]] = variant.width
        return GenerationOptions(
            sampling=SamplingParams(temperature=key.temperature, seed=seed),
            mode=variant.mode,  # type: ignore[arg-type]
            max_tokens=self.max_tokens,
            accept=self.accept,
            think=self.think,
            reasoning_effort=self.effort,
            **widths,
        )
