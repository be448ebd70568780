"""Write the guide's tables anew: commands and pairs from the code, model types from the tests.

    python examples/measure/guide_tables.py

Each table stands between `<!-- name -->` and `<!-- end -->`.
"""

import re
import tomllib
from importlib import import_module
from pathlib import Path

from dflash_mlx.hub.kinds import KINDS, MTP
from dflash_mlx.hub.registry import Entry, entries

GUIDE = Path(__file__).parents[1] / "guide"
PAGES = [GUIDE / name for name in ("chat.md", "models.md", "model_types.md")]
ZOO = Path(__file__).parents[2] / "tests" / "support" / "zoo.toml"


def commands() -> str:
    """The table of slash commands and keys."""
    table = import_module("dflash_mlx.cli.chat.commands").COMMANDS
    keys = import_module("dflash_mlx.cli.terminal.line_editor").KEYS
    rows = [(f"`{command.syntax}`", command.help) for command in table]
    rows += [(name, does) for name, does in keys]
    return rows_of(("command or key", "does"), rows)


def pairs() -> str:
    """The table of published pairs: memory in every form of the target, and whether they run."""
    rows, known = [], entries()
    for entry in known:
        if entry.quant or not entry.draft:
            continue
        forms = {e.quant: e for e in known if e.quant and is_same_pair(e, entry)}
        sizes = [memory(forms.get(quant)) for quant in ("4bit", "8bit")]
        state = "yes" if entry.supported else "not yet"
        draft = "in the target's files" if entry.own_head else entry.draft
        kind = KINDS[entry.kind]
        rows.append((entry.target, draft, kind, str(entry.block), *sizes, memory(entry), state))
    heads = ("target", "drafter", "kind", "block", "4-bit", "8-bit", "as published", "supported")
    return rows_of(heads, rows)


def is_same_pair(quantised: Entry, entry: Entry) -> bool:
    """Whether a pair is a published one with a quantised target."""
    if quantised.published != entry.target:
        return False
    return quantised.draft == entry.draft or (entry.own_head and quantised.kind == MTP)


def memory(entry: Entry | None) -> str:
    """Memory of a pair with 4,096 tokens of context."""
    if entry is None or entry.memory_bytes is None:
        return "–"
    return f"{entry.memory_bytes / 1e9:.0f} GB"


def types() -> str:
    """The table of mlx-lm's model types and what each takes, which tests/models checks."""
    own = tomllib.loads(ZOO.read_text(encoding="utf-8"))["types"]
    modules = import_module("mlx_lm.utils").MODEL_REMAPPING
    rows = []
    for name in sorted({*own, *modules}, key=str.lower):
        kind = own[modules.get(name, name)]
        takes = kind.get("can", "all drafts")
        if "needs" in kind:
            takes = f"not tried: mlx-lm's code needs {kind['needs']}"
        rows.append((f"`{name}`", takes))
    return rows_of(("type", "takes"), rows)


def rows_of(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |" for r in lines)


def filled(text: str) -> str:
    """A page with new tables."""
    for name, table in (("commands", commands()), ("pairs", pairs()), ("types", types())):
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = between.sub(lambda found, table=table: found[1] + table + "\n" + found[2], text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
