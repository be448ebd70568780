"""Write the README's tables of commands and pairs anew from the code that knows them.

    .venv/bin/python examples/readme_tables.py

Each table stands between `<!-- name -->` and `<!-- end -->`.
"""

import re
from importlib import import_module
from pathlib import Path

from dflash_mlx.hub.registry import Entry, entries

README = Path(__file__).parent.parent / "README.md"


def commands() -> str:
    """The slash commands, what they do, and the keys."""
    table = import_module("dflash_mlx.cli.chat.commands").COMMANDS
    keys = import_module("dflash_mlx.cli.terminal.line_editor").KEYS
    rows = [(f"`{command.syntax}`", command.help) for command in table]
    rows += [(name, does) for name, does in keys]
    return rows_of(("command or key", "does"), rows)


def pairs() -> str:
    """The published pairs: memory in every form of the target, and whether they run yet."""
    rows, known = [], entries()
    for entry in known:
        if entry.quant:
            continue
        forms = {e.quant: e for e in known if e.draft == entry.draft and e.quant}
        sizes = [memory(forms.get(quant)) for quant in ("4bit", "8bit")]
        state = "yes" if entry.supported else "not yet"
        rows.append((entry.target, entry.draft, str(entry.block), *sizes, memory(entry), state))
    heads = ("target", "drafter", "block", "4-bit", "8-bit", "as published", "supported")
    return rows_of(heads, rows)


def memory(entry: Entry | None) -> str:
    """Memory of a pair with 4,096 tokens of context."""
    if entry is None or entry.memory_bytes is None:
        return "–"
    return f"{entry.memory_bytes / 1e9:.0f} GB"


def rows_of(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |" for r in lines)


def filled(text: str) -> str:
    """The README with its tables as they should be."""
    for name, table in (("commands", commands()), ("pairs", pairs())):
        between = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        text = between.sub(lambda found, table=table: found[1] + table + found[2], text)
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
