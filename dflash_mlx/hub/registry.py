"""The published pairs, from `pairs.toml`: the drafters of each target, best first, the sizes of
both, and whether this engine supports them. This module does not contact the Hub.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from dflash_mlx.files.model_types import is_known
from dflash_mlx.types import SNAPSHOT_LIMITS

from .bits import chosen_bits, share_of_bytes
from .cache import cached_state
from .kinds import KINDS, LOADED, MTP, TOKEN_BY_TOKEN

# Bits for each weight, scales included.
BITS = {"4bit": 4.5, "8bit": 8.5, "bf16": 16.0, "MXFP4-Q4": 4.5, "MXFP4-Q8": 4.6}
CONTEXT = 4096  # tokens of context in `Entry.memory_bytes`
COMFORTABLE_SHARE = 0.75  # of the working set; above it a pair gets a warning
DISK_MARGIN = 2_000_000_000  # bytes to leave free

# Types whose caches hold latents, or whose attention has sinks: mlx-lm does not quantise those.
LATENTS_OR_SINKS = ("deepseek_v3", "glm_moe_dsa", "gpt_oss", "kimi_k2", "kimi_k25")


@dataclass(frozen=True, slots=True)
class Entry:
    """One target with one of its drafters.

    published: the id of the target as its authors published it. draft: empty for a target without
    a drafter, whose kind is empty, too. kind: the drafter's, a key of `KINDS`. An MTP head of a
    published target is in the target's own files, so that both ids are the same. licence: the
    drafter's, empty if unconfirmed. Sizes are in bytes; None without even an estimate. kv_bytes: of
    the target per token of context; draft_kv_bytes: of an MTP head, 0 for other drafters.
    state_bytes: the constant size of recurrent states. active: the parameters that one token reads.
    strength: answers, code or speed, of a target that a first start may offer, and good: what it is
    good at; empty for others. names: more short names of the target.
    """

    target: str
    published: str
    draft: str
    family: str
    kind: str
    block: int
    quant: str
    params: int | None
    target_bytes: int | None
    draft_bytes: int | None
    kv_bytes: int
    draft_kv_bytes: int
    state_bytes: int
    estimated: bool
    gated: bool
    licence: str
    note: str
    active: int | None
    strength: str
    good: str
    names: tuple[str, ...]

    @property
    def own_head(self) -> bool:
        return self.draft == self.target

    @property
    def repos(self) -> tuple[str, ...]:
        """The repositories to download for the pair, the target's first."""
        return (self.target,) if self.own_head or not self.draft else (self.target, self.draft)

    @property
    def download_bytes(self) -> int | None:
        if len(self.repos) == 1:
            return self.target_bytes
        if self.target_bytes is None or self.draft_bytes is None:
            return None
        return self.target_bytes + self.draft_bytes

    @property
    def quantised(self) -> bool:
        return self.quant not in ("", "bf16")

    @property
    def memory_bytes(self) -> int | None:
        return self.memory()

    def memory(self, draft_bits: int | None = None, kv_bits: int | None = None) -> int | None:
        """The bytes of the pair with a context of 4,096 tokens. Arguments as of `load`."""
        if self.target_bytes is None or self.draft_bytes is None:
            return None
        return self.least_memory(draft_bits, kv_bits)

    def least_memory(self, draft_bits: int | None = None, kv_bits: int | None = None) -> int:
        """As `memory`, but a size that is not known counts 0."""
        bits = chosen_bits(draft_bits, target_quantised=self.quantised)
        kv = 1 if self.family in LATENTS_OR_SINKS else share_of_bytes(kv_bits or 0)
        rows = CONTEXT * (self.kv_bytes * kv + self.draft_kv_bytes)
        draft = round((self.draft_bytes or 0) * share_of_bytes(bits))
        weights = (self.target_bytes or 0) + draft
        return weights + round(rows) + self.state_bytes + max_snapshot_bytes(self.state_bytes)

    @property
    def lacks(self) -> str:
        """The reason why this engine does not support the pair; empty if it does."""
        if not is_known(self.family):
            return f"targets of the type '{self.family}' are not supported yet"
        if self.kind and self.kind not in LOADED:
            return f"drafters of the kind {KINDS[self.kind]} are not supported yet"
        return ""

    @property
    def supported(self) -> bool:
        return not self.lacks


def max_snapshot_bytes(state: int) -> int:
    """The largest number of bytes of a conversation's cache snapshots, of `state` bytes each."""
    return max(state, min(SNAPSHOT_LIMITS.count * state, SNAPSHOT_LIMITS.nbytes))


NO_DRAFTER: dict[str, Any] = {"id": "", "kind": "", "block": 0, "bytes": 0}


@cache
def entries() -> tuple[Entry, ...]:
    """All pairs: each target as published and then quantised, each with all its drafters.

    One without a drafter has one entry in each version.
    """
    text = files("dflash_mlx.hub").joinpath("pairs.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    found = []
    for target in (*table["target"], *table["undrafted"]["targets"]):
        mlx = target.get("mlx", {"repo": "", "quants": []})
        names = {"": target["id"]} | {quant: f"{mlx['repo']}-{quant}" for quant in mlx["quants"]}
        for quant, name in names.items():
            for drafter in target.get("drafters", [NO_DRAFTER]):
                if not quant or drafter["id"] != target["id"]:  # conversions leave the head out
                    found.append(entry_of(target, name, quant, drafter))
    return tuple(found)


def entry_of(target: dict[str, Any], name: str, quant: str, drafter: dict[str, Any]) -> Entry:
    """One version of a target with one drafter. name, quant: of the version; "" as published."""
    params = target.get("params")
    size = None if quant else target.get("bytes")
    exact_size = size is not None
    if not exact_size and params is not None:
        size = round(params * BITS.get(quant, 16.0) / 8)
    draft_bytes = drafter.get("bytes")
    if draft_bytes is None and "params" in drafter:
        draft_bytes = 2 * drafter["params"]
    own_head = drafter["kind"] == MTP and not quant
    return Entry(
        target=name,
        published=target["id"],
        draft=name if own_head else drafter["id"],
        family=target["family"],
        kind=drafter["kind"],
        block=drafter["block"],
        quant=quant,
        params=params,
        target_bytes=size,
        draft_bytes=draft_bytes,
        kv_bytes=target.get("kv", 0),
        draft_kv_bytes=drafter.get("kv", 0),
        state_bytes=target.get("state", 0),
        estimated=not exact_size,
        gated=target.get("gated", False) and not quant,
        licence=drafter.get("licence", ""),
        note="; ".join(row["note"] for row in (target, drafter) if "note" in row),
        active=target.get("active", params),
        strength=target.get("strength", ""),
        good=target.get("good", ""),
        names=tuple(target.get("names", ())),
    )


def pairs_of(target: str) -> tuple[Entry, ...]:
    """The pairs of a target, best first; empty if it is not listed.

    target: its Hub id, in any case, or a folder whose path ends with the id, as LM Studio's do.
    """
    name = "/".join(Path(target).parts[-2:]).lower()
    return tuple(entry for entry in entries() if entry.target.lower() == name)


def find(target: str) -> Entry | None:
    """The target's pair with its best drafter that this version loads.

    If it loads none, with the best one; None if the target is not listed.
    """
    pairs = pairs_of(target)
    return next((entry for entry in pairs if entry.supported), pairs[0] if pairs else None)


@cache
def best_known() -> tuple[Entry, ...]:
    """One pair for each version of each target, as `find` returns it."""
    names = dict.fromkeys(entry.target for entry in entries())
    return tuple(entry for name in names if (entry := find(name)) is not None)


def drafter_of(target: str) -> str | None:
    return None if (entry := find(target)) is None else entry.draft or None


def best_pair(memory_bytes: int) -> Entry | None:
    """The pair with the largest target that fits a machine's memory; None if all are too big.

    memory_bytes: the limit of the working set. Of one target the largest variant that fits is
    chosen. Gated repositories and EAGLE-3 heads, which draft token by token, are never chosen.
    """
    fitting = [entry for entry in best_known() if fits(entry, memory_bytes)]
    # max() returns the first of equal entries: the published target, not its bf16 copy.
    return max(fitting, key=lambda e: (e.params or 0, e.target_bytes or 0), default=None)


def fits(entry: Entry, memory_bytes: int, free_disk_bytes: float = inf) -> bool:
    """Whether a pair may be chosen for somebody on a machine with this much memory and disk."""
    return (
        entry.supported
        and bool(entry.draft)
        and entry.kind not in TOKEN_BY_TOKEN
        and not entry.gated
        and entry.memory_bytes is not None
        and entry.download_bytes is not None
        and entry.memory_bytes < COMFORTABLE_SHARE * memory_bytes
        and entry.download_bytes + DISK_MARGIN <= free_disk_bytes
    )


# The pairs that a first start offers

FIRST_OFFERS = 3
STRENGTHS = ("answers", "code", "speed")


def suggested_pairs(memory_bytes: int, free_disk_bytes: int) -> list[Entry]:
    """At most three pairs that fit a machine, the one with the best answers first.

    Of each strength the largest target, then the next largest of any; each in the version that its
    short name means.
    """
    offered = (default_variant(variants) for variants in targets_with_variants())
    fitting = sorted(
        (e for e in offered if e.strength and fits(e, memory_bytes, free_disk_bytes)),
        key=lambda entry: entry.params or 0,
        reverse=True,
    )
    best = {entry.strength: entry for entry in reversed(fitting)}
    chosen = [best[strength] for strength in STRENGTHS if strength in best]
    chosen += [entry for entry in fitting if entry not in chosen]
    return chosen[:FIRST_OFFERS]


# Short names of the registry's targets

WORDS = re.compile(r"a\d+b(?![a-z\d])|\d+(?:\.\d+)*[a-z]*|[a-z]+")
OPTIONAL = re.compile(r"instruct|it|a\d+b")  # the last: active parameters of a mixture of experts
MAX_SUGGESTIONS = 3


def words(name: str) -> list[str]:
    """The words and numbers of a name, without its owner: ["qwen", "3", "4b"]."""
    return WORDS.findall(name.rpartition("/")[2].lower())


def targets_with_variants() -> list[list[Entry]]:
    """The known targets, each as published and then with its quantisations."""
    targets: list[list[Entry]] = []
    for entry in best_known():
        if entry.quant:
            targets[-1].append(entry)
        else:
            targets.append([entry])
    return targets


def default_variant(variants: list[Entry]) -> Entry:
    """The quantisation with the fewest bits; the published weights if there is none."""
    return next((entry for entry in variants if entry.quantised), variants[0])


def variants_named(name: str) -> list[Entry]:
    """The entries that a short name can mean: all variants of one target, or the named one.

    Empty if the name fits no target, or several.
    """
    short_words = words(name)
    matches = []
    for variants in targets_with_variants():
        named = [words(name) for name in (variants[0].target, *variants[0].names)]
        if any(is_short_for(short_words, target_words) for target_words in named):
            matches.append(variants)
            continue
        for entry in variants[1:]:
            full_names = [*(one + words(entry.quant) for one in named), words(entry.target)]
            if any(is_short_for(short_words, full_name) for full_name in full_names):
                matches.append([entry])
    return matches[0] if len(matches) == 1 else []


def is_short_for(short: list[str], full: list[str], optional: re.Pattern[str] = OPTIONAL) -> bool:
    """Whether the words of a short name are those of a full name, apart from optional ones."""
    return short == [word for word in full if word in short or not optional.fullmatch(word)]


def find_target(name: str, state_of: Callable[[str], str] = cached_state) -> str | None:
    """The Hub id of the target that a name means; None for a folder and for an ambiguous name.

    The case of letters is ignored. Among several variants of a target, this is the downloaded one,
    else the default one. state_of: as `cache.cached_state`.
    """
    if name.startswith((".", "~", "/")) or Path(name).exists():
        return None
    if "/" in name:
        entry = find(name)
        return entry.target if entry else None
    variants = variants_named(name)
    downloaded = [entry.target for entry in variants if state_of(entry.target) == "yes"]
    if len(downloaded) > 1 or not variants:
        return None
    return downloaded[0] if downloaded else default_variant(variants).target


def similar_targets(name: str, here: Iterable[str] = ()) -> list[str]:
    """The targets that a short or misspelt name may mean, at most three, the nearest first.

    here: the names of models on this machine, which may be others than those of the table.
    """
    if variants := variants_named(name):
        variants = sorted(variants, key=lambda entry: not entry.quantised)
        return [entry.target for entry in variants[:MAX_SUGGESTIONS]]
    known = {
        " ".join(words(name)): default_variant(variants).target
        for variants in targets_with_variants()
        for name in (variants[0].target, *variants[0].names)
    }
    known |= {" ".join(words(model)): model for model in here}
    text = " ".join(words(name))
    longer = [name for name in known if text and name.startswith(text)]
    similar = difflib.get_close_matches(text, known, n=MAX_SUGGESTIONS, cutoff=0.7)
    return list(dict.fromkeys(known[name] for name in longer + similar))[:MAX_SUGGESTIONS]


# How the authors of a copy name another format of the weights, behind the model's own name.
FORMATS = re.compile(
    r"[-_.](?:unsloth|bnb|fp8|nvfp4|mxfp[48]|awq|gptq|hqq|quantized|w\d+a\d+|int[48]|[48]bit).*",
    re.IGNORECASE,
)


def conversion_of(name: str) -> str | None:
    """The Hub id of a known target in MLX's format, for a copy of it in another; None if unknown.

    name: a Hub id or a folder, such as unsloth/Qwen3-8B-bnb-4bit.
    """
    variants = variants_named(FORMATS.sub("", name.rpartition("/")[2]))
    found = default_variant(variants).target if variants else name
    return None if found.lower() == name.lower() else found


# Whether a drafter was made for the weights of its target, by their names. Shapes do not tell: one
# for DeepSeek-V4-Flash loads with DeepSeek-V4-Flash-0731, and 3 % of its drafts are accepted.

DATE = re.compile(r"\d{4}|\d{6}|\d{8}")


def other_weights(target: str, draft: str, config: dict[str, Any]) -> str:
    """A sentence if a drafter was made for other weights than the target's; empty otherwise.

    target, draft: Hub ids or folders. config: the drafter's. Nothing is said where nothing is
    known: the target may be a copy or a fine-tune of the one that the drafter was made for.
    """
    made_for = targets_of(draft, config)
    if not made_for or any(may_be_same(target, name) for name in made_for):
        return ""
    return (
        f"the drafter '{draft}' was made for {' and '.join(made_for)}, whose weights are not those "
        f"of '{target}': its drafts may nearly all be refused"
    )


def targets_of(draft: str, config: dict[str, Any]) -> list[str]:
    """The published targets that a drafter was made for: by the registry, else by its config."""
    known = [entry.published for entry in entries() if entry.draft.lower() == draft.lower()]
    if known:
        return list(dict.fromkeys(known))
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return [name] if isinstance(name, str) and name.count("/") == 1 else []


def may_be_same(target: str, other: str) -> bool:
    """By the published ids of targets in the registry; of others only a date in the name tells."""
    entries = find(target), find(other)
    if all(entries):
        return len({entry.published for entry in entries if entry}) == 1
    names = [words(name.rstrip("/")) for name in (target, other)]
    dates = [{word for word in name if DATE.fullmatch(word)} for name in names]
    return not set(names[1]) - dates[1] <= set(names[0]) or dates[0] == dates[1]
