"""The published pairs, from `pairs.toml`: the drafter of each target, the sizes of both, and
whether this engine supports them. This module does not contact the Hub.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dflash_mlx.drafter import assistant
from dflash_mlx.drafter.bits import chosen_bits, share_of_bytes
from dflash_mlx.drafter.config import ARCHITECTURES, V1
from dflash_mlx.drafter.kinds import EAGLE3

# The keys of target.families.FAMILIES, repeated because that module imports MLX, which is slow.
SUPPORTED_FAMILIES = frozenset(
    "deepseek_v3 gemma4 gemma4_text gemma4_unified glm4_moe glm_moe_dsa gpt_oss kimi_k2 kimi_k25 "
    "llama minimax minimax_m2 muse_glimmer qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next".split()
)
SUPPORTED_DRAFTERS = frozenset((*ARCHITECTURES, assistant.ARCHITECTURE, EAGLE3))

# Bits for each weight, scales included.
BITS = {"4bit": 4.5, "8bit": 8.5, "bf16": 16.0, "MXFP4-Q4": 4.5, "MXFP4-Q8": 4.6}
CONTEXT = 4096  # tokens of context in `Entry.memory_bytes`
COMFORTABLE_SHARE = 0.75  # of the working set; above it a pair gets a warning
DISK_MARGIN = 2_000_000_000  # bytes to leave free
SNAPSHOTS, SNAPSHOT_BYTES = 6, 1 << 30  # limits of a conversation's cache snapshots


@dataclass(frozen=True, slots=True)
class Entry:
    """One target with its drafter.

    Sizes are bytes; None where there is not even an estimate. `kv_bytes` are for each token of
    context, `state_bytes` the constant size of recurrent states.
    """

    target: str
    draft: str
    family: str
    drafter: str
    block: int
    quant: str
    params: int | None
    target_bytes: int | None
    draft_bytes: int | None
    kv_bytes: int
    state_bytes: int
    estimated: bool
    gated: bool
    note: str

    @property
    def download_bytes(self) -> int | None:
        """Both repositories together."""
        if self.target_bytes is None or self.draft_bytes is None:
            return None
        return self.target_bytes + self.draft_bytes

    @property
    def quantised(self) -> bool:
        """Whether the target is one of mlx-community's quantisations."""
        return self.quant not in ("", "bf16")

    @property
    def memory_bytes(self) -> int | None:
        """The memory of the pair in bytes with a context of 4,096 tokens.

        The drafter has its usual bits (`drafter.bits`).
        """
        if self.target_bytes is None or self.draft_bytes is None:
            return None
        bits = chosen_bits(None, target_quantised=self.quantised)
        draft = round(self.draft_bytes * share_of_bytes(bits))
        caches = CONTEXT * self.kv_bytes + self.state_bytes + max_snapshot_bytes(self.state_bytes)
        return self.target_bytes + draft + caches

    @property
    def lacks(self) -> str:
        """The reason why this engine does not support the pair; empty if it does."""
        if self.family not in SUPPORTED_FAMILIES:
            return f"targets of the type '{self.family}' are not supported yet"
        if self.drafter not in SUPPORTED_DRAFTERS:
            return f"drafters of the kind '{self.drafter}' are not supported yet"
        return ""

    @property
    def supported(self) -> bool:
        """Whether this engine supports the pair."""
        return not self.lacks


def max_snapshot_bytes(state: int) -> int:
    """The largest number of bytes of a conversation's cache snapshots, of `state` bytes each."""
    return max(state, min(SNAPSHOTS * state, SNAPSHOT_BYTES))


@cache
def entries() -> tuple[Entry, ...]:
    """All pairs; each is followed by those with a quantised target."""
    text = files("dflash_mlx.hub").joinpath("pairs.toml").read_text(encoding="utf-8")
    return tuple(entry for pair in tomllib.loads(text)["pair"] for entry in expand(pair))


def expand(pair: dict[str, Any]) -> list[Entry]:
    """The entries of one table of `pairs.toml`: the published target, then mlx-community's."""
    published = pair["target"], "", pair.get("bytes")
    mlx = pair.get("mlx", {"repo": "", "quants": []})
    variants = [published] + [(f"{mlx['repo']}-{quant}", quant, None) for quant in mlx["quants"]]
    found = []
    for target, quant, size in variants:
        params, exact_size = pair.get("params"), size is not None
        if not exact_size and params is not None:
            size = round(params * BITS.get(quant, 16.0) / 8)
        draft_bytes = pair.get("draft_bytes")
        if draft_bytes is None and "draft_params" in pair:
            draft_bytes = 2 * pair["draft_params"]
        found.append(
            Entry(
                target=target,
                draft=pair["draft"],
                family=pair["family"],
                drafter=pair.get("drafter", V1),
                block=pair["block"],
                quant=quant,
                params=params,
                target_bytes=size,
                draft_bytes=draft_bytes,
                kv_bytes=pair.get("kv", 0),
                state_bytes=pair.get("state", 0),
                estimated=not exact_size,
                gated=pair.get("gated", False) and not quant,
                note=pair.get("note", ""),
            )
        )
    return found


def find(target: str) -> Entry | None:
    """The pair of a target's Hub id, case-insensitive; None if the registry does not list it."""
    return next((e for e in entries() if e.target.lower() == target.lower()), None)


def drafter_of(target: str) -> str | None:
    """The Hub id of a target's drafter; None if the registry does not list the target."""
    return None if (entry := find(target)) is None else entry.draft


def best_pair(
    memory_bytes: int, free_disk_bytes: int, among: Iterable[Entry] | None = None
) -> Entry | None:
    """The pair with the largest target that fits a machine; None if all are too big.

    `memory_bytes` is the limit of the working set, `free_disk_bytes` the free disk space; `among`
    restricts the choice (None: all entries). Of one target the largest quantisation that fits is
    chosen. Gated repositories are never chosen, nor drafters that are no DFlash ones.
    """
    fitting = [
        entry
        for entry in (entries() if among is None else among)
        if entry.supported
        and entry.drafter in ARCHITECTURES
        and not entry.gated
        and entry.memory_bytes is not None
        and entry.download_bytes is not None
        and entry.memory_bytes < COMFORTABLE_SHARE * memory_bytes
        and entry.download_bytes + DISK_MARGIN <= free_disk_bytes
    ]
    # max() returns the first of equal entries: the published target, not its bf16 copy.
    return max(fitting, key=lambda e: (e.params or 0, e.target_bytes or 0), default=None)
