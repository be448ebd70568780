"""Which tools may be called without asking: in this session, and always.

What is always allowed stands in a file in the data folder, for its owner alone. A tool is known by
its server's name and by what the server is, so that another program of that name is asked about.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.errors import DFlashError

from .transcript import data_folder, data_path, write_atomically

if TYPE_CHECKING:
    from dflash_mlx.tools.server_config import ServerConfig

FILE = "allowed_tools.json"


class Permissions:
    """Tools that may be called; DFlashError for a file that was damaged."""

    def __init__(self) -> None:
        self._session: set[str] = set()
        self._always = read_allowed()

    def state(self, key: str) -> str:
        """always, session, or nothing where the user is to be asked."""
        return "always" if key in self._always else "session" if key in self._session else ""

    def allow(self, key: str, *, always: bool) -> None:
        """Do not ask about a tool any more; DFlashError where that cannot be kept."""
        self._session.add(key)
        if always:
            self._always = read_allowed() | {key}  # another chat may have added some
            write_allowed(self._always)

    def forget(self) -> None:
        """Ask about every tool again."""
        self._session.clear()
        if self._always:
            self._always.clear()
            write_allowed(self._always)


def key_of(config: "ServerConfig", tool: str) -> str:
    """What a tool is known by."""
    source = json.dumps([config.command, config.args, config.cwd, config.url])
    return f"{config.name}/{tool} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def allowed_path() -> Path:
    """The file; it need not exist."""
    return data_path() / FILE


def read_allowed() -> set[str]:
    """What the file says."""
    path = allowed_path()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = document["allowed"]
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise DFlashError(
            f"the file '{path}' of tools that may be called cannot be read.",
            hint="mend or delete it: then each tool is asked about again",
        )
    return set(found)


def write_allowed(keys: set[str]) -> None:
    """Replace the file in one step."""
    path = allowed_path()
    text = json.dumps({"version": 1, "allowed": sorted(keys)}, ensure_ascii=False, indent=1)
    try:
        data_folder()
        write_atomically(path, text + "\n")
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({error.strerror}): it holds for this session only.",
            hint="check the folder's permissions",
        ) from None
