"""Which sources of drafts are held against each other, as in the tables of the papers.

    dflash          the target's known DFlash drafter; dflash:ID is another one
    eagle3:ID       an EAGLE-3 head, by chains; eagle3-60:ID by its authors' trees of 60 rows
    model:ID        a small language model
    lookup          copies of earlier text
    none            plain decoding

Sources run one after another, because a loaded target has one drafter at a time. Plain decoding is
measured beside each, prompt by prompt: a ratio is from the same minutes, but the rates of two
sources are not. Knows names and pairs, not how a source drafts.

    for source in parse_sources("dflash,lookup,none"):
        pair = with_drafter(pair, source.draft, no_draft=source.no_draft)
        source.check(pair)
        ...  # run(pair, questions, source.schedule(schedule), {})
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_mlx.draft_model.draft_model import ModelDrafter
from dflash_mlx.eagle.drafter import EagleDrafter
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.resolve import LOOKUP
from dflash_mlx.pair import Pair

from .modes import BASELINE, WIDTHS, Variant
from .record import Record
from .schedule import Schedule

DFLASH, EAGLE3, MODEL, NONE = "dflash", "eagle3", "model", "none"
KNOWN = "use dflash, dflash:ID, eagle3:ID, eagle3-60:ID, model:ID, lookup or none"
MAX_ROWS = WIDTHS["ddtree"][2] + 1
WHAT = {MODEL: "a language model", DFLASH: "a DFlash drafter", EAGLE3: "an EAGLE-3 head"}


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of drafts and, if one was given, the Hub id or folder of what drafts.

    `rows`: of a verify, the anchor's included, where drafts are trees; None for chains.
    """

    kind: str
    name: str | None = None
    rows: int | None = None

    @property
    def label(self) -> str:
        """The name as it was given."""
        kind = self.kind if self.rows is None else f"{self.kind}-{self.rows}"
        return kind if self.name is None else f"{kind}:{self.name}"

    @property
    def draft(self) -> str | None:
        """What `with_drafter` gets as `draft`."""
        return LOOKUP if self.kind == LOOKUP else self.name

    @property
    def no_draft(self) -> bool:
        """And as `no_draft`."""
        return self.kind == NONE

    def check(self, pair: Pair) -> None:
        """DFlashError unless a pair that was loaded for it drafts in this way."""
        if self.kind == DFLASH and pair.lookup:
            raise DFlashError(
                f"no DFlash drafter is known for '{pair.target_name}'.",
                hint="name one as dflash:ID, make one with `dflash train`, or take lookup instead",
            )
        if self.kind in WHAT and (found := kind_of(pair)) != self.kind:
            name = self.name or pair.draft_name
            raise DFlashError(f"'{name}' is {WHAT[found]}.", hint=f"write {found}:{name}")

    def schedule(self, whole: Schedule) -> Schedule:
        """Its part of a comparison: its chains or trees, and plain decoding in turn with them."""
        plain = Variant(BASELINE)
        if self.kind == NONE:
            return replace(whole, modes=(plain,), block_size=None)
        if self.rows is not None:
            return replace(whole, modes=(plain, Variant("ddtree", self.rows - 1)))
        return replace(whole, modes=(plain, Variant("dflash")))

    def results_file(self, path: Path | None) -> Path | None:
        """`NAME-source.jsonl` for NAME.jsonl: the facts of a file are those of one pair."""
        if path is None:
            return None
        label = re.sub(r"[^\w.-]+", "-", self.label)
        return path.with_name(f"{path.stem}-{label}{path.suffix}")

    def named(self, records: Sequence[Record]) -> list[Record]:
        """The records of its part, where the mode of drafted answers is its label."""
        return [
            r if r.key.mode == BASELINE else replace(r, key=replace(r.key, mode=self.label))
            for r in records
        ]


def kind_of(pair: Pair) -> str:
    """What kind of model a pair drafts by."""
    kinds = {ModelDrafter: MODEL, EagleDrafter: EAGLE3}
    return kinds.get(type(pair.drafter), DFLASH)


def parse_sources(text: str) -> tuple[Source, ...]:
    """Sources from names with commas between them; UsageError for what is none."""
    found = list[Source]()
    for word in filter(None, (word.strip() for word in text.split(","))):
        kind, colon, name = word.partition(":")
        tree = re.fullmatch(rf"{EAGLE3}-(\d+)", kind)
        rows = None if tree is None else int(tree[1])
        if rows is not None and not 2 <= rows <= MAX_ROWS:
            raise UsageError(f"'{kind}' is no tree.", hint=f"give 2 to {MAX_ROWS:,} rows")
        kind = kind if rows is None else EAGLE3
        if kind not in (*WHAT, LOOKUP, NONE):
            raise UsageError(f"there is no source of drafts '{word}'.", hint=KNOWN)
        if colon and kind in (LOOKUP, NONE):
            raise UsageError(f"the source {kind} has no model.", hint=f"write {kind}")
        if not name and (colon or kind in (MODEL, EAGLE3)):
            raise UsageError(f"'{word}' names no model.", hint=f"write {kind}:ID")
        found.append(Source(kind, name or None, rows))
    if not found:
        raise UsageError("no source of drafts was given.", hint=KNOWN)
    if len(set(found)) < len(found):
        raise UsageError("a source of drafts was given twice.", hint="give each one once")
    return tuple(found)
