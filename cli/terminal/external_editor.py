"""Lets the user change a text in the editor of their own. Knows no prompts."""

import os
import shlex
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from dflash_mlx.errors import DFlashError

from .tty_modes import seen_lines


def edit_externally(text: str) -> str:
    """Open a text in $VISUAL or $EDITOR and return the result; DFlashError when that fails."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    handle, name = tempfile.mkstemp(prefix="dflash-", suffix=".md")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with seen_lines():
            code = subprocess.call([*shlex.split(editor), name])
        if code:
            raise DFlashError(
                f"the editor '{editor}' ended with {code}.", hint="nothing was changed"
            )
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        raise DFlashError(
            f"the editor '{editor}' cannot be used ({getattr(error, 'strerror', None) or error}).",
            hint="set EDITOR to the one you like",
        ) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
