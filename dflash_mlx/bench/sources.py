"""The drafters that `dflash bench --drafts` compares, as in the tables of the papers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_mlx.drafters import small_model
from dflash_mlx.drafters.load import kind_of
from dflash_mlx.drafters.mtp.tensors import has_head
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.cache import cached_checkpoint, cached_repos, cached_state
from dflash_mlx.hub.registry import pairs_of
from dflash_mlx.hub.resolve import BUNDLED, LOOKUP, MTP
from dflash_mlx.models.memory import estimate_memory, memory_fit, working_set
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair

from .records import Record
from .schedule import BASELINE, WIDTHS, Schedule, Variant, refuse_twice, words_of

DFLASH = "dflash"
DSPARK = "dspark"
EAGLE3 = "eagle3"
ASSISTANT = "assistant"
MODEL = "model"
NONE = "none"
ALL = "all"  # whatever fits the target, see `fitting_sources`
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
# Formats that are not named as their kind; the drafter in a language model is its own MTP head.
WORDS = {"dflash2": DFLASH, "gemma4_assistant": ASSISTANT, "language model": MTP}


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
        return self.kind if self.kind in (LOOKUP, MTP) and self.name is None else self.name

    @property
    def no_draft(self) -> bool:
        return self.kind == NONE

    def check(self, pair: Pair) -> None:
        """Raise DFlashError if a pair that was loaded for this source has another drafter."""
        if self.kind == DFLASH and pair.lookup:
            raise DFlashError(
                f"no DFlash drafter is known for '{pair.target_name}'.",
                hint="name one as dflash:ID, make one with `dflash train`, or take lookup instead",
            )
        if self.kind in MODEL_KINDS and pair.drafter and (kind := pair.drafter.kind) != self.kind:
            name = self.name or pair.draft_name
            raise DFlashError(f"'{name}' is {MODEL_KINDS[kind]}.", hint=f"write {kind}:{name}")

    def schedule(self, whole: Schedule) -> Schedule:
        """The schedule of this source: its drafts, alternating with plain decoding."""
        plain = Variant(BASELINE)
        if self.no_draft:
            return replace(whole, modes=(plain,), block_size=None)
        drafts = Variant("dflash") if self.rows is None else Variant("ddtree", self.rows - 1)
        return replace(whole, modes=(plain, drafts))

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


def parse_sources(text: str) -> tuple[Source, ...]:
    """Sources from comma-separated names. Raises UsageError for invalid ones."""
    sources = [source_of(word) for word in words_of(text)]
    if not sources:
        raise UsageError("no source of drafts was given.", hint=KNOWN)
    refuse_twice("a source of drafts", sources)
    if Source(ALL) in sources and len(sources) > 1:
        raise UsageError(f"{ALL} has every source that fits.", hint=f"give {ALL} alone")
    return tuple(sources)


def source_of(word: str) -> Source:
    kind, colon, name = word.partition(":")
    rows = None
    if tree := re.fullmatch(rf"{EAGLE3}-(\d+)", kind):
        rows = int(tree[1])
        if not 2 <= rows <= MAX_ROWS:
            raise UsageError(f"'{kind}' is no tree.", hint=f"give 2 to {MAX_ROWS:,} rows")
        kind = EAGLE3
    if kind not in (*MODEL_KINDS, LOOKUP, NONE, ALL):
        raise UsageError(f"there is no source of drafts '{word}'.", hint=KNOWN)
    if colon and kind in (LOOKUP, NONE, ALL):
        raise UsageError(f"the source {kind} has no model.", hint=f"write {kind}")
    if not name and (colon or kind in (MODEL, EAGLE3, DSPARK, ASSISTANT)):
        raise UsageError(f"'{word}' names no model.", hint=f"write {kind}:ID")
    return Source(kind, name or None, rows)


# `--drafts all`


def fitting_sources(pair: Pair) -> tuple[Source, ...]:
    """The downloaded drafters that fit a target, its own head, copies, and plain decoding.

    The listed ones come first, the best known before others. Left out are small models, which
    `model:ID` names, and what does not fit the memory beside the target.
    """
    target = pair.target
    sources = [Source(DFLASH)] if pair.target_name == BUNDLED else []
    for repo in dict.fromkeys([*known_drafters(pair), *cached_repos()]):
        checkpoint = cached_checkpoint(repo)
        if checkpoint is not None and (word := fitting_word(checkpoint, target)):
            sources.append(Source(word, repo))
    if has_head(target.checkpoint) and fitting_word(target.checkpoint, target):
        sources.append(Source(MTP))
    return (*sources, Source(LOOKUP), Source(NONE))


def known_drafters(pair: Pair) -> list[str]:
    """The Hub ids of the target's known drafters that this version loads, best first."""
    pairs = pairs_of(pair.target_name)
    return [repo for entry in pairs if entry.supported for repo in entry.repos[1:]]


def missing_drafters(pair: Pair) -> list[str]:
    return [repo for repo in known_drafters(pair) if cached_state(repo) != "yes"]


def fitting_word(checkpoint: Checkpoint, target: Target) -> str:
    """The kind of source for a checkpoint that is a drafter and fits a target; empty for others."""
    try:
        kind = kind_of(checkpoint, target.checkpoint)
        if kind is small_model:
            return ""
        kind.check(checkpoint, target.checkpoint)
    except DFlashError:
        return ""
    if memory_fit(estimate_memory(target, checkpoint).total, working_set()) == "refuse":
        return ""
    return WORDS.get(checkpoint.format, checkpoint.format)
