"""Reads the schema or the grammar that an answer must follow."""

from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.errors import UsageError

from .prompt import read_file

if TYPE_CHECKING:
    from dflash_mlx import Grammar


def read_grammar(schema: str | None, grammar: str | None) -> "Grammar | None":
    """What --schema and --grammar ask for, checked; UsageError, with the reason, if it is wrong."""
    from dflash_mlx.constrained.grammar import asked_grammar

    asked = asked_grammar(
        None if schema is None else read_value(schema, "--schema", "{"),
        None if grammar is None else read_value(grammar, "--grammar", ":"),
    )
    if asked is not None:
        from dflash_mlx.constrained.grammar import check_grammar

        check_grammar(asked)
    return asked


def asked_schema(schema: str | None) -> "Grammar | None":
    """What --schema asks of a server, which judges it; UsageError for what is no JSON object."""
    from dflash_mlx.constrained.grammar import asked_grammar

    return asked_grammar(None if schema is None else read_value(schema, "--schema", "{"), None)


def read_value(value: str, flag: str, mark: str) -> str:
    """The text itself where it has the mark that no name of a file has, or the file's text."""
    if mark in value and not is_file(value):
        return value
    if not is_file(value):
        raise UsageError(
            f"there is no file '{value:.60}'.", hint=f"{flag} takes a file or its text"
        )
    return read_file(Path(value), flag)


def is_file(name: str) -> bool:
    """Whether there is such a file; a text may be no possible name."""
    try:
        return Path(name).expanduser().is_file()
    except (OSError, ValueError):
        return False
