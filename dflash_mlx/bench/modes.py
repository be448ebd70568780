"""Which ways of decoding are held against each other: a mode of the engine, and its width.

    baseline        plain decoding
    dflash:8        a mode that is given its width: 8 tokens a block
    ddtree:32       or 32 nodes a tree

Knows names, not how a mode works.
"""

from dataclasses import dataclass
from typing import Any, get_args

from dflash_mlx.errors import UsageError
from dflash_mlx.session import Mode

BASELINE = "baseline"
WIDTHS = {"dflash": ("block_size", 2, 256), "ddtree": ("tree_budget", 1, 1024)}


@dataclass(frozen=True, slots=True)
class Variant:
    """A mode and, if one was given, the number behind its name."""

    mode: str
    width: int | None = None

    @property
    def label(self) -> str:
        """The name as it was given."""
        return self.mode if self.width is None else f"{self.mode}:{self.width}"

    def options(self, block_size: int | None) -> dict[str, Any]:
        """What `Session.stream` gets; `block_size` is that of modes without a number."""
        if self.mode == BASELINE:
            return {}
        found = {"block_size": block_size}
        if self.width is not None:
            found[WIDTHS[self.mode][0]] = self.width
        return found


def default_modes() -> list[str]:
    """The engine's modes, plain decoding first."""
    return [BASELINE, *(mode for mode in get_args(Mode) if mode != BASELINE)]


def parse_modes(text: str) -> tuple[Variant, ...]:
    """Variants from names with commas between them; UsageError for what is none."""
    found = []
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
            found.append(Variant(mode))
            continue
        name, least, most = WIDTHS[mode]
        if not number.isdecimal() or not least <= int(number) <= most:
            raise UsageError(
                f"the {name} of '{word}' cannot be '{number}'.",
                hint=f"give a whole number from {least} to {most:,}",
            )
        found.append(Variant(mode, int(number)))
    if not found:
        raise UsageError("no mode was given.", hint=f"use {', '.join(default_modes())}")
    if len(set(found)) < len(found):
        raise UsageError("a mode was given twice.", hint="give each one once")
    return tuple(found)
