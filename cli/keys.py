"""Keys of servers: where they are given, and files that hold one."""

from pathlib import Path
from typing import Literal

import typer

from dflash_mlx.errors import DFlashError, UsageError

from .config_file import file_error_reason
from .sources import source_of

KeyOption = Literal["api_key", "api_key_file"]


def key_option(ctx: typer.Context) -> KeyOption | None:
    """Which of the two options of `dflash serve` has the key: that of the higher source, if any."""
    names: tuple[KeyOption, ...] = ("api_key", "api_key_file")
    given: list[KeyOption] = [name for name in names if ctx.params[name] is not None]
    return max(given, key=lambda name: source_of(ctx, name), default=None)


def server_key(ctx: typer.Context) -> str | None:
    """The key that clients of `dflash serve` must send. Raises as `read_key_file`."""
    name = key_option(ctx)
    if name == "api_key_file":
        return read_key_file(ctx.params[name], "--api-key-file")
    return ctx.params["api_key"] if name else None


def read_key_file(path: Path, flag: str) -> str:
    """The key in a file that `flag` names. DFlashError if it is no text, UsageError if empty."""
    try:
        key = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DFlashError(
            f"the key's file '{path}' cannot be read ({file_error_reason(error)}).",
            hint=f"{flag} takes a text file with the key and nothing else",
        ) from None
    if not key:
        raise UsageError(f"the key's file '{path}' is empty.", hint="write the key into it")
    return key
