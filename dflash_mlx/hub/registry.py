"""The published pairs as data: which drafter belongs to which target, how big both are, and whether
this engine runs them. Reads `pairs.toml`; knows neither the Hub nor a loaded model.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dflash_mlx.drafter.config import KINDS, V1

# What the engine runs. The keys of families.FAMILIES are named again here because that module loads
# MLX, for which a list of names should not wait.
FAMILIES = frozenset(
    "deepseek_v3 gemma4 gemma4_text gemma4_unified glm4_moe glm_moe_dsa gpt_oss kimi_k2 kimi_k25 "
    "llama minimax minimax_m2 muse_glimmer qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next".split()
)
DRAFTERS = frozenset(KINDS)

BITS = {"4bit": 4.5, "8bit": 8.5, "bf16": 16.0, "MXFP4-Q4": 4.5, "MXFP4-Q8": 4.6}
CONTEXT = 4096  # tokens that an entry's memory has room for
COMFORT = 0.75  # share of the working set that a pair may fill without a warning
DISK_MARGIN = 2_000_000_000  # bytes to leave free
SNAPSHOTS, SNAPSHOT_BYTES = 6, 1 << 30  # places in a conversation to go back to, at most


@dataclass(frozen=True, slots=True)
class Entry:
    """One target with its drafter; sizes in bytes, None where not even an estimate is known."""

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
    def memory_bytes(self) -> int | None:
        """What the pair needs with a context of 4,096 tokens."""
        if (size := self.download_bytes) is None:
            return None
        return size + CONTEXT * self.kv_bytes + self.state_bytes + snapshots_of(self.state_bytes)

    @property
    def lacks(self) -> str:
        """Why this engine cannot run the pair yet, in a few words; empty when it can."""
        if self.family not in FAMILIES:
            return f"targets of the type '{self.family}' are not supported yet"
        if self.drafter not in DRAFTERS:
            return f"drafters of the kind '{self.drafter}' are not supported yet"
        return ""

    @property
    def supported(self) -> bool:
        """Whether this engine can run the pair."""
        return not self.lacks


def snapshots_of(state: int) -> int:
    """At most what a conversation's places to go back to take, of so many bytes each."""
    return max(state, min(SNAPSHOTS * state, SNAPSHOT_BYTES))


@cache
def entries() -> tuple[Entry, ...]:
    """Every pair, each followed by the quantisations of its target."""
    text = files("dflash_mlx.hub").joinpath("pairs.toml").read_text(encoding="utf-8")
    return tuple(entry for pair in tomllib.loads(text)["pair"] for entry in expand(pair))


def expand(pair: dict[str, Any]) -> list[Entry]:
    """The entries of one table: the target as published, then at mlx-community."""
    published = pair["target"], "", pair.get("bytes")
    mlx = pair.get("mlx", {"repo": "", "quants": []})
    forms = [published] + [(f"{mlx['repo']}-{quant}", quant, None) for quant in mlx["quants"]]
    found = []
    for target, quant, size in forms:
        params, stated = pair.get("params"), size is not None
        if not stated and params is not None:
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
                estimated=not stated,
                gated=pair.get("gated", False) and not quant,
                note=pair.get("note", ""),
            )
        )
    return found


def find(target: str) -> Entry | None:
    """The pair of a target, whatever the case of its id; None when it is not listed."""
    return next((e for e in entries() if e.target.lower() == target.lower()), None)


def drafter_of(target: str) -> str | None:
    """The Hub id of a target's drafter; None when none is listed."""
    return None if (entry := find(target)) is None else entry.draft


def suits(
    memory_bytes: int, free_disk_bytes: int, among: Iterable[Entry] | None = None
) -> Entry | None:
    """The most capable pair for a machine, of all or `among` some; None when all are too big.

    `memory_bytes` is the working-set limit. The largest target that fits comfortably wins, in the
    finest form that fits; nothing that asks for a licence first is chosen.
    """
    fitting = [
        entry
        for entry in (entries() if among is None else among)
        if entry.supported
        and not entry.gated
        and entry.memory_bytes is not None
        and entry.download_bytes is not None
        and entry.memory_bytes < COMFORT * memory_bytes
        and entry.download_bytes + DISK_MARGIN <= free_disk_bytes
    ]
    # max() keeps the first of equals: the target as published before its bf16 copy.
    return max(fitting, key=lambda e: (e.params or 0, e.target_bytes or 0), default=None)
