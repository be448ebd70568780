"""Reads the schema or the grammar that an answer must follow."""

from pathlib import Path

from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar, asked_grammar

from .prompt import read_file


def read_grammar(
    schema: str | None, grammar: str | None, *, remote: bool = False
) -> Grammar | None:
    """What --schema and --grammar ask for; UsageError, with the reason, if it is wrong.

    A `remote` model's server judges it.
    """
    asked = asked_grammar(
        None if schema is None else read_value(schema, "--schema", "{"),
        None if grammar is None else read_value(grammar, "--grammar", ":"),
    )
    if asked is not None and not remote:
        from dflash_mlx.constrained.grammar import check_grammar

        check_grammar(asked)
    return asked


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
