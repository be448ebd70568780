"""The recipe's words, phrases and facts are files in the folder words; this reads them."""

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("words")


def read_words(name: str) -> dict[str, Any]:
    """The lists and tables of one file, in the file's order."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
