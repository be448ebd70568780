"""Copies text to the clipboard, with a system tool or with the terminal's OSC 52 sequence."""

import base64
import os
import shutil
import subprocess
import sys

from dflash_mlx.errors import DFlashError

COPY_COMMANDS = (
    ("pbcopy", (), ""),
    ("wl-copy", (), "WAYLAND_DISPLAY"),
    ("xclip", ("-selection", "clipboard"), "DISPLAY"),
    ("xsel", ("--clipboard", "--input"), "DISPLAY"),
)


def copy_to_clipboard(text: str) -> str:
    """Copy a text and return how it was copied; DFlashError when there is no way."""
    for name, arguments, required_variable in COPY_COMMANDS:
        program = shutil.which(name)
        if program is None or (required_variable and not os.environ.get(required_variable)):
            continue
        try:
            subprocess.run(
                [program, *arguments],
                input=text.encode("utf-8", "replace"),
                check=True,
                timeout=5,
                stdout=subprocess.DEVNULL,  # xclip keeps running and would hold a pipe open
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise DFlashError(
                f"{name} could not copy the answer ({error}).", hint="/export writes it to a file"
            ) from None
        return f"with {name}"
    if not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        raise DFlashError("there is no clipboard here.", hint="/export writes the chat to a file")
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    sys.stdout.write(f"\x1b]52;c;{encoded}\a")
    sys.stdout.flush()
    return "through the terminal, if it allows that (OSC 52)"
