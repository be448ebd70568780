"""Write the package's register, dflash_mlx/hub/pairs.toml, from register.toml beside this file.

    python examples/measure/write_pairs.py

The sources and other people's figures stay here; the package gets ids, kinds, sizes and notes.
"""

import tomllib
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("register.toml")
PAIRS = Path(__file__).parents[2] / "dflash_mlx" / "hub" / "pairs.toml"
HEAD = """\
# The known targets and their drafters, best first. Written by examples/measure/write_pairs.py from
# examples/measure/register.toml, which explains the keys and has the sources: change that one.
"""
TARGET_KEYS = (
    "id", "family", "gated", "params", "active", "bytes", "kv", "state", "strength", "good", "mlx",
    "names", "note",
)  # fmt: skip
DRAFTER_KEYS = ("id", "kind", "block", "params", "bytes", "kv", "licence", "note")


def read_table() -> list[dict[str, Any]]:
    """The targets of register.toml that have drafters, each with its list `drafter`."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))["target"]


def undrafted() -> list[dict[str, Any]]:
    """The targets of register.toml without a drafter."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))["undrafted"]["targets"]


def pairs() -> str:
    """The text of pairs.toml."""
    blocks = [HEAD]
    for target in read_table():
        target = with_note(target, "target")
        lines = ["[[target]]", *lines_of(target, TARGET_KEYS), "drafters = ["]
        for drafter in target["drafter"]:
            inner = ", ".join(lines_of(with_note(drafter, "drafter"), DRAFTER_KEYS))
            lines.append(f"    {{ {inner} }},")
        blocks.append("\n".join([*lines, "]", ""]))
    rows = (", ".join(lines_of(with_note(row, "target"), TARGET_KEYS)) for row in undrafted())
    lines = ["[undrafted]", "targets = [", *(f"    {{ {row} }}," for row in rows), "]", ""]
    return "\n".join([*blocks, "\n".join(lines)])


def with_note(row: dict[str, Any], noun: str) -> dict[str, Any]:
    """A row whose note says what is unconfirmed of the target or the drafter."""
    parts = [row["note"]] if "note" in row else []
    if names := row.get("unconfirmed"):
        parts.append(f"the {noun}'s {' and '.join(names)} unconfirmed")
    return {**row, "note": "; ".join(parts)} if parts else row


def lines_of(row: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    """`key = value` for each of these keys that the row has."""
    return [f"{key} = {literal(row[key])}" for key in keys if key in row]


def literal(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, list):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(lines_of(value, tuple(value)))} }}"
    return f'"{value}"'


if __name__ == "__main__":
    PAIRS.write_text(pairs(), encoding="utf-8")
