"""Reads the prompt from the argument, a file and standard input. Knows no models."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dflash_mlx.distributed.places import input_is_shared
from dflash_mlx.errors import UsageError

from .attachments import matches, read_attachments
from .config_file import file_error_reason

EMPTY_HINT = "give it as an argument, with --file, or on standard input"


def read_prompt(argument: str | None, files: Sequence[str] = ()) -> str:
    """Join the given parts with an empty line between them; UsageError when all are empty.

    One file is taken as it is; of several, of folders and of patterns each has its name and a
    fence. Standard input is read when it is not a terminal nor `mlx.launch`'s, or when the argument
    is `-`. One trailing newline of a file or of standard input is removed.
    """
    if argument is not None and argument != "-" and not argument.strip():
        raise UsageError("the prompt is empty.", hint=EMPTY_HINT)
    parts = [] if argument in (None, "-") else [argument]
    if len(files) == 1 and list(matches(files[0])) == [(os.path.expanduser(files[0]), True)]:
        parts.append(read_file(Path(files[0])))
    elif files:
        parts.append(read_attachments(files).text)
    waiting = not (sys.stdin is None or sys.stdin.isatty() or input_is_shared())
    if argument == "-" or waiting:
        parts.append(read_stdin())
    text = "\n\n".join(part for part in parts if part and part.strip())
    if not text:
        raise UsageError("the prompt is empty.", hint=EMPTY_HINT)
    return text


def read_file(path: Path, flag: str = "--file") -> str:
    """Read a text file that a flag names."""
    try:
        return path.expanduser().read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the file '{path}' cannot be read ({file_error_reason(error)}).",
            hint=f"{flag} takes a text file",
        ) from None


def read_stdin() -> str:
    """Read standard input to its end."""
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise UsageError(
            "standard input is not UTF-8 text.", hint="convert it first, for example with iconv"
        ) from None


def prompt_messages(text: str, system: str | None, *, raw: bool) -> str | list[dict[str, str]]:
    """The prompt in the form that a session takes: messages, or text with `raw`."""
    if raw:
        if system is not None:
            raise UsageError(
                "a system prompt cannot be sent with --raw.",
                hint="write it into the text, or leave --raw out",
            )
        return text
    system_messages = [] if system is None else [{"role": "system", "content": system}]
    return [*system_messages, {"role": "user", "content": text}]
