"""Text to the clipboard, by the system's own tool or by the terminal itself (OSC 52)."""

import base64
import os
import shutil
import subprocess
import sys

from dflash_mlx.errors import DFlashError

TOOLS = (
    ("pbcopy", (), ""),
    ("wl-copy", (), "WAYLAND_DISPLAY"),
    ("xclip", ("-selection", "clipboard"), "DISPLAY"),
    ("xsel", ("--clipboard", "--input"), "DISPLAY"),
)


def to_clipboard(text: str) -> str:
    """Copy a text and say how; DFlashError when there is no way."""
    for name, arguments, needs in TOOLS:
        program = shutil.which(name)
        if program is None or (needs and not os.environ.get(needs)):
            continue
        try:
            subprocess.run(
                [program, *arguments],
                input=text.encode("utf-8", "replace"),
                check=True,
                timeout=5,
                stdout=subprocess.DEVNULL,  # xclip stays behind and would keep a pipe open
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise DFlashError(
                f"{name} could not copy the answer ({error}).", hint="/export writes it to a file"
            ) from None
        return f"with {name}"
    if not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        raise DFlashError("there is no clipboard here.", hint="/export writes the chat to a file")
    code = base64.b64encode(text.encode("utf-8", "replace")).decode()
    sys.stdout.write(f"\x1b]52;c;{code}\a")
    sys.stdout.flush()
    return "through the terminal, if it allows that (OSC 52)"
