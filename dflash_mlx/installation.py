"""This installation: its versions, and the command that adds a package to it."""

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from dflash_mlx import __version__

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def installed(name: str) -> "Distribution | None":
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """The versions of this program, MLX and mlx-lm, as `--json` and files give them."""
    from importlib.metadata import version  # slow to import

    return {"dflash": __version__, "mlx": version("mlx"), "mlx_lm": version("mlx-lm")}


def install_command(package: str, *, again: bool = False) -> str:
    """A shell command, in backquotes. `again`: also if the package is installed already."""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        words = ["pipx", "inject", "dflash-chat", package]
        if again:
            words = ["pipx", "runpip", "dflash-chat", "install", "--force-reinstall", package]
    elif find_spec("pip") is not None:
        words = [sys.executable, "-m", "pip", "install", *["--force-reinstall"] * again, package]
    else:
        bundled = prefix.parent / ".venv-uv/bin/uv"  # of a clone that installed its own uv
        uv = str(bundled) if which("uv") is None and bundled.exists() else "uv"
        words = [uv, "pip", "install", *["--reinstall"] * again, "--python", sys.prefix, package]
    return f"`{shlex.join(words)}`"
