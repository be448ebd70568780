"""Asks for a confirmation before something is downloaded or removed."""

import sys

import typer

from dflash_mlx.errors import UsageError

from .terminal.output import Output


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def check_can_ask(yes: bool) -> None:
    """Raise UsageError if a question is needed and there is no terminal to ask it."""
    if not yes and not can_ask():
        raise UsageError(
            "there is no terminal to ask at.", hint="give --yes to continue without asking"
        )


def confirm(question: str, declined: str, out: Output, *, yes: bool, default: bool = False) -> None:
    """Ask a question, unless `yes`; after a no print `declined` and exit with code 1."""
    if not yes and not typer.confirm(question, default=default, err=True):
        out.info(declined)
        raise typer.Exit(1)
