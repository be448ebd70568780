"""Public measurements of plain and speculative decoding on Macs, by others."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from .published import (
    CODER,
    HYBRID,
    LARGE_HYBRID,
    LFM,
    MIXED_HYBRID,
    QWEN3,
    Published,
    drafter_of_kind,
    shape,
)

DEPTH = 1024  # tokens of context where a source names none
HELD_OUT = 10  # every tenth row is not fitted

SMALL_QWEN3 = {
    **QWEN3,
    **shape(2560, 9728, 36, 32, 8, 128),
    "tie_word_embeddings": True,
}
MEDIUM_QWEN3 = {**QWEN3, **shape(5120, 17_408, 40, 40, 8, 128)}
SMALL_HYBRID = {
    **HYBRID,
    **shape(2560, 9216, 32, 16, 4, 256),
    "tie_word_embeddings": True,
}
# The target, and the sizes and taps of its drafters of the DFlash family.
SHAPES: Mapping[str, tuple[Mapping[str, Any], dict[str, Any], int]] = {
    "Qwen3-4B": (SMALL_QWEN3, shape(2560, 9728, 5, 32, 8, 128), 5),
    "Qwen3-8B": (QWEN3, shape(4096, 12_288, 5, 32, 8, 128), 5),
    "Qwen3-14B": (MEDIUM_QWEN3, shape(5120, 17_408, 5, 40, 8, 128), 5),
    "Qwen3-Coder-30B-A3B": (CODER, shape(2048, 6144, 8, 32, 4, 128), 5),
    "Qwen3.5-4B": (SMALL_HYBRID, shape(2560, 9216, 6, 32, 8, 128), 8),
    "Qwen3.5-9B": (HYBRID, shape(4096, 12_288, 6, 32, 8, 128), 8),
    "Qwen3.6-27B": (LARGE_HYBRID, shape(5120, 17_408, 5, 32, 8, 128), 5),
    "Qwen3.6-35B-A3B": (MIXED_HYBRID, shape(2048, 6144, 6, 32, 4, 128), 5),
    "Qwen3.8-27B": (LARGE_HYBRID, shape(5120, 17_408, 5, 32, 8, 128), 5),
    "LFM2.5-2.6B": (LFM, shape(2048, 6144, 5, 32, 8, 64), 5),
}
BLOCKS = {"dflash": 16, "dflash2": 8, "dspark": 7, "mtp": 3}  # as the configs state them
DSPARK_BLOCKS = {"Qwen3.6-35B-A3B": 15, "LFM2.5-2.6B": 9}


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of measured.toml. Speeds in tok/s; 0 is not measured, and a tau of 0 not published.

    `rows` of a verify pass; `kind` of the drafter, as in hub/kinds.py. `unfitted`: why the
    speculative speed is not fitted, where kernels or engine are not MLX's own.
    """

    chip: str
    target: str
    bits: int
    source: str
    engine: str
    plain: float = 0.0
    drafted: float = 0.0
    rows: int = 16
    tau: float = 0.0
    kind: str = "dflash"
    draft_bits: int = 0
    context: int = DEPTH
    unfitted: str = ""
    note: str = ""
    held_out: bool = False

    @property
    def pair(self) -> Published:
        """The shapes of the pair. Targets of 16 bits are not quantised."""
        return pair_of(self.target, self.kind, self.bits)


def pair_of(target: str, kind: str, bits: int) -> Published:
    """A target of SHAPES with a drafter of a kind; one of 16 bits is not quantised."""
    config, sizes, taps = SHAPES[target]
    block = DSPARK_BLOCKS.get(target, BLOCKS[kind]) if kind == "dspark" else BLOCKS[kind]
    draft = drafter_of_kind(kind, sizes, config, taps, block)
    mode = "none" if bits == 16 else "affine"
    return Published(f"{target} {bits}-bit", config, draft, mode, bits)


@dataclass(frozen=True, slots=True)
class Product:
    """A measured product of `rows` rows with a matrix, in milliseconds; its quantisation."""

    chip: str
    inputs: int
    outputs: int
    bits: int
    rows: int
    ms: float
    source: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A public row that says nothing here, and why."""

    row: str
    reason: str
    source: str


def load_drafters() -> tuple[Measured, ...]:
    """Every row of measured_drafters.toml: figures of which none was used for the factors."""
    file = files("ledger").joinpath("measured_drafters.toml")
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["measured"]
    return tuple(Measured(**one, held_out=True) for one in rows)


def load() -> tuple[tuple[Measured, ...], tuple[Product, ...], tuple[LeftOut, ...]]:
    """Every row, with each tenth held out in the file's order."""
    data = tomllib.loads(files("ledger").joinpath("measured.toml").read_text(encoding="utf-8"))
    rows = enumerate(data["measured"], 1)
    return (
        tuple(Measured(**one, held_out=at % HELD_OUT == 0) for at, one in rows),
        tuple(Product(**one) for one in data["product"]),
        tuple(LeftOut(**one) for one in data["left_out"]),
    )
