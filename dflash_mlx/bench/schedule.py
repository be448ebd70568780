"""The settings of a benchmark run, and the interleaved order of its answers."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.eagle3.drafter import EagleDrafter
from dflash_mlx.drafters.gemma4_assistant.drafter import AssistantDrafter
from dflash_mlx.drafters.mtp.drafter import MTPDrafter
from dflash_mlx.drafters.small_model import SmallModelDrafter
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.resolve import LOOKUP, MTP
from dflash_mlx.options import AcceptanceRule, Mode, SamplingParams
from dflash_mlx.pair import Pair

from .questions import Question

# Modes to compare

BASELINE = "baseline"
WIDTHS = {"dflash": ("block_size", 2, 256), "ddtree": ("tree_budget", 1, 1024)}


@dataclass(frozen=True, slots=True)
class Variant:
    """A mode. width: its block size or tree budget, as in "dflash:8"; None for the default."""

    mode: str
    width: int | None = None

    @property
    def label(self) -> str:
        return self.mode if self.width is None else f"{self.mode}:{self.width}"

    def options(self, block_size: int | None) -> dict[str, Any]:
        """The options for `Session.stream`. block_size: for a mode without a width."""
        if self.mode == BASELINE:
            return {}
        options = {"block_size": block_size}
        if self.width is not None:
            options[WIDTHS[self.mode][0]] = self.width
        return options


def default_modes() -> list[str]:
    """The engine's modes, plain decoding first."""
    return [BASELINE, *(mode for mode in get_args(Mode) if mode != BASELINE)]


def parse_modes(text: str) -> tuple[Variant, ...]:
    """Variants from comma-separated names. Raises UsageError for invalid ones."""
    variants = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        mode, colon, number = word.partition(":")
        if mode not in default_modes():
            raise UsageError(
                f"there is no mode '{mode}'.",
                hint=f"use {', '.join(default_modes())}, or one with its width, such as dflash:8",
            )
        if colon and mode not in WIDTHS:
            raise UsageError(f"the mode {mode} has no width.", hint=f"write {mode}")
        if not colon:
            variants.append(Variant(mode))
            continue
        name, least, most = WIDTHS[mode]
        if not number.isdecimal() or not least <= int(number) <= most:
            raise UsageError(
                f"the {name} of '{word}' cannot be '{number}'.",
                hint=f"give a whole number from {least} to {most:,}",
            )
        variants.append(Variant(mode, int(number)))
    if not variants:
        raise UsageError("no mode was given.", hint=f"use {', '.join(default_modes())}")
    if len(set(variants)) < len(variants):
        raise UsageError("a mode was given twice.", hint="give each one once")
    return tuple(variants)


# The measurements of one question by one mode

MIN_RATE_TOKENS = 8  # shorter answers have no decode rate
NUMBERS = tuple[int, ...]
JSON_TYPES: dict[Any, Any] = {int: int, float: (int, float), str: str, NUMBERS: int}


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a record in a run.

    suite, number, digest: of the question. mode: the label of a variant. repeat: counted from 1.
    """

    suite: str
    number: int
    digest: str
    mode: str
    temperature: float
    repeat: int


@dataclass(frozen=True, slots=True)
class Rounds:
    """The decode passes of the target with the same number of rows.

    rows: of a pass, anchor included (1: a plain step). count: number of passes. tokens: committed
    by them. seconds: of the rounds, each from the block before to its block.
    """

    rows: int
    count: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a chat.

    text: the answer without thinking, for the prompt of the next turn. tokens: its ids, with the
    stop token. prefill_seconds: from the tokenised prompt to the first token; first_token_seconds:
    from the call to the first token; decode_seconds: from the first token to the last. drafted,
    accepted: numbers of drafts; accepted_by_position: of accepted drafts in position 1, 2, ...
    """

    prompt_tokens: int
    cached_tokens: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    verifies: int
    drafted: int
    accepted: int
    accepted_by_position: tuple[int, ...]
    rounds: tuple[Rounds, ...]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second after the first token; None below `MIN_RATE_TOKENS` tokens.

        The first token is left out: there a mode may already have started its next pass.
        """
        if len(self.tokens) < MIN_RATE_TOKENS or not self.decode_seconds:
            return None
        return (len(self.tokens) - 1) / self.decode_seconds

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second, without cached ones; None if all are cached."""
        new = self.prompt_tokens - self.cached_tokens
        return new / self.prefill_seconds if new and self.prefill_seconds else None

    @property
    def acceptance_length(self) -> float | None:
        """τ, as in `Stats`; None without a pass after the prompt."""
        passes = sum(part.count for part in self.rounds)
        return sum(part.tokens for part in self.rounds) / passes if passes else None


@dataclass(frozen=True, slots=True)
class Record:
    """All answers to one question by one mode.

    `peak_bytes` is the peak memory of MLX, with the weights of both models in every mode.
    """

    key: Key
    task: str
    turns: tuple[Turn, ...]
    peak_bytes: int

    def data(self) -> dict[str, Any]:
        return {
            **asdict(self.key),
            "task": self.task,
            "peak_bytes": self.peak_bytes,
            "turns": [asdict(turn) for turn in self.turns],
        }


def record_of(data: dict[str, Any]) -> Record:
    """A record from its JSON object. Raises ValueError, KeyError or TypeError for another one."""
    turns = []
    for turn in data["turns"]:
        rounds = tuple(from_json(Rounds, part) for part in turn["rounds"])
        lists = {name: tuple(turn[name]) for name in ("tokens", "accepted_by_position")}
        turns.append(from_json(Turn, {**turn, **lists, "rounds": rounds}))
    if not turns:
        raise ValueError("there is no answer")
    key = from_json(Key, {field.name: data[field.name] for field in fields(Key)})
    rest = {name: data[name] for name in ("task", "peak_bytes")}
    return from_json(Record, {"key": key, "turns": tuple(turns), **rest})


def from_json(kind: type[Any], data: dict[str, Any]) -> Any:
    """An instance of a dataclass from JSON values. Raises TypeError for a wrong type.

    Values without a field, as older versions wrote some, are ignored.
    """
    for field in fields(kind):
        value = data[field.name]
        json_type = JSON_TYPES.get(field.type)
        values = value if field.type == NUMBERS else [value]
        if json_type and not all(isinstance(item, json_type) for item in values):
            raise TypeError(field.name)
    return kind(**{field.name: data[field.name] for field in fields(kind)})


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
    accept: AcceptanceRule = "match"
    think: bool | None = None
    effort: str | None = None
    cooldown: float = 0.0

    def __post_init__(self) -> None:
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
        keys = []
        for repeat in range(self.repeats):
            for index, question in enumerate(questions):
                cycle, first = divmod(index + repeat, len(self.modes))
                order = self.modes[first:] + self.modes[:first]
                for temperature in self.temperatures:
                    for variant in order[:: -1 if cycle % 2 else 1]:
                        key = Key(
                            question.suite,
                            question.number,
                            question.digest,
                            variant.label,
                            temperature,
                            repeat + 1,
                        )
                        keys.append((key, question, variant))
        return keys

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


# Drafters to compare, as in the tables of the papers

DFLASH = "dflash"
DSPARK = "dspark"
EAGLE3 = "eagle3"
ASSISTANT = "assistant"
MODEL = "model"
NONE = "none"
ALL = "all"  # whatever fits the target; `fitting_sources` has it
KNOWN = (
    "use all, or dflash, dflash:ID, dspark:ID, eagle3:ID, eagle3-60:ID, mtp, mtp:ID, assistant:ID, "
    "model:ID, lookup and none"
)
MAX_ROWS = WIDTHS["ddtree"][2] + 1
MODEL_KINDS = {
    MODEL: "a language model",
    DFLASH: "a DFlash drafter",
    DSPARK: "a DSpark drafter",
    EAGLE3: "an EAGLE-3 head",
    MTP: "an MTP head",
    ASSISTANT: "an assistant of Gemma 4",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of drafter. name: its Hub id or folder; None for the default.

    rows: of a verify, including the anchor, if the drafts are trees; None for chains.
    """

    kind: str
    name: str | None = None
    rows: int | None = None

    @property
    def label(self) -> str:
        kind = self.kind if self.rows is None else f"{self.kind}-{self.rows}"
        return kind if self.name is None else f"{kind}:{self.name}"

    @property
    def draft(self) -> str | None:
        """The argument `draft` for `with_drafter`."""
        return self.kind if self.kind in (LOOKUP, MTP) and self.name is None else self.name

    @property
    def no_draft(self) -> bool:
        return self.kind == NONE

    @property
    def is_all(self) -> bool:
        return self.kind == ALL

    def check(self, pair: Pair) -> None:
        """Raise DFlashError if a pair that was loaded for this source has another drafter."""
        if self.kind == DFLASH and pair.lookup:
            raise DFlashError(
                f"no DFlash drafter is known for '{pair.target_name}'.",
                hint="name one as dflash:ID, make one with `dflash train`, or take lookup instead",
            )
        if self.kind in MODEL_KINDS and (kind := drafter_kind(pair)) != self.kind:
            name = self.name or pair.draft_name
            raise DFlashError(f"'{name}' is {MODEL_KINDS[kind]}.", hint=f"write {kind}:{name}")

    def schedule(self, whole: Schedule) -> Schedule:
        """The schedule of this source: its drafts, alternating with plain decoding."""
        plain = Variant(BASELINE)
        if self.kind == NONE:
            return replace(whole, modes=(plain,), block_size=None)
        if self.rows is not None:
            return replace(whole, modes=(plain, Variant("ddtree", self.rows - 1)))
        return replace(whole, modes=(plain, Variant("dflash")))

    def results_file(self, path: Path | None) -> Path | None:
        """`NAME-source.jsonl` for NAME.jsonl, because a file has the facts of one pair."""
        if path is None:
            return None
        label = re.sub(r"[^\w.-]+", "-", self.label)
        return path.with_name(f"{path.stem}-{label}{path.suffix}")

    def named(self, records: Sequence[Record]) -> list[Record]:
        """The records with this source's label as the mode of drafted answers."""
        return [
            r if r.key.mode == BASELINE else replace(r, key=replace(r.key, mode=self.label))
            for r in records
        ]


def drafter_kind(pair: Pair) -> str:
    """The kind of a pair's drafter, as a source names it."""
    kinds = {
        SmallModelDrafter: MODEL,
        EagleDrafter: EAGLE3,
        MTPDrafter: MTP,
        AssistantDrafter: ASSISTANT,
    }
    plain = DFLASH
    if isinstance(pair.drafter, DFlashDrafter) and pair.drafter.config.dspark:
        plain = DSPARK
    return kinds.get(type(pair.drafter), plain)


def parse_sources(text: str) -> tuple[Source, ...]:
    """Sources from comma-separated names. Raises UsageError for invalid ones."""
    sources: list[Source] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        kind, colon, name = word.partition(":")
        tree = re.fullmatch(rf"{EAGLE3}-(\d+)", kind)
        rows = None if tree is None else int(tree[1])
        if rows is not None and not 2 <= rows <= MAX_ROWS:
            raise UsageError(f"'{kind}' is no tree.", hint=f"give 2 to {MAX_ROWS:,} rows")
        kind = kind if rows is None else EAGLE3
        if kind not in (*MODEL_KINDS, LOOKUP, NONE, ALL):
            raise UsageError(f"there is no source of drafts '{word}'.", hint=KNOWN)
        if colon and kind in (LOOKUP, NONE, ALL):
            raise UsageError(f"the source {kind} has no model.", hint=f"write {kind}")
        if not name and (colon or kind in (MODEL, EAGLE3, DSPARK, ASSISTANT)):
            raise UsageError(f"'{word}' names no model.", hint=f"write {kind}:ID")
        sources.append(Source(kind, name or None, rows))
    if not sources:
        raise UsageError("no source of drafts was given.", hint=KNOWN)
    if len(set(sources)) < len(sources):
        raise UsageError("a source of drafts was given twice.", hint="give each one once")
    if Source(ALL) in sources and len(sources) > 1:
        raise UsageError(f"{ALL} has every source that fits.", hint=f"give {ALL} alone")
    return tuple(sources)
