"""MCP servers as they are configured: in the form of Claude Desktop, Claude Code and Zed.

    {"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes-server"], "env": {"A": "b"}},
                    "web": {"url": "https://example.com/mcp", "headers": {"X-Key": "${WEB_KEY}"}}}}

Starts nothing.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError

NAME = re.compile(r"[\w.-]{1,60}")
KEYS = ("command", "args", "env", "cwd", "url", "headers", "type", "disabled")
HTTP = ("http", "streamable-http", "streamableHttp", "streamable_http")
HOLDERS = ("mcpServers", "context_servers")  # Claude's key, and Zed's
VARIABLE = re.compile(r"\$\{(\w+)\}")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One server: a program that is started (`command`), or an address (`url`).

    `${NAME}` in the values of `env` and `headers` is a variable of this program's environment.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Pairs = ()
    cwd: str | None = None
    url: str = ""
    headers: Pairs = ()

    @property
    def source(self) -> str:
        """The program or the address, on one line."""
        return self.url or " ".join((self.command, *self.args))


def read_server_file(path: str | Path) -> list[ServerConfig]:
    """The servers of a JSON file of another program, without those that it has disabled.

    Keys that only the other program understands are let be. DFlashError for a file that cannot be
    read, has no servers, or has a wrong one.
    """
    path = Path(path).expanduser()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DFlashError(
            f"the file '{path}' cannot be read ({error.strerror}).",
            hint="give the JSON file in which a program keeps its MCP servers",
        ) from None
    except (ValueError, RecursionError):
        raise DFlashError(f"the file '{path}' is not JSON in UTF-8.", hint="mend it") from None
    tables = document if isinstance(document, dict) else {}
    held = next((tables[key] for key in HOLDERS if key in tables), None)
    if not isinstance(held, dict):
        raise DFlashError(
            f"the file '{path}' has no MCP servers.",
            hint='it should be {"mcpServers": {"NAME": {"command": "...", "args": [...]}}}',
        )
    return read_servers(held, f"in '{path}'", foreign=True)


def read_servers(
    tables: Mapping[str, Any], place: str, *, foreign: bool = False
) -> list[ServerConfig]:
    """Servers by name, without those that are disabled; `foreign`: other keys are let be."""
    found = [server_of(name, table, place, foreign=foreign) for name, table in tables.items()]
    return [one for one in found if one is not None]


def server_of(name: str, table: Any, place: str, *, foreign: bool) -> ServerConfig | None:
    """One server; None where it is disabled. DFlashError names what is wrong and where."""

    def wrong(what: str, hint: str) -> DFlashError:
        return DFlashError(f"the MCP server '{name}' {place} {what}.", hint=hint)

    if not NAME.fullmatch(name):
        raise wrong("has a name that cannot be", "use letters, digits and . _ -")
    if not isinstance(table, dict):
        raise wrong("is no table", 'write command = "..." and args = [...], or url = "..."')
    if unknown := [key for key in table if key not in KEYS and not foreign]:
        raise wrong(f"has the key '{unknown[0]}'", f"keys: {', '.join(KEYS)}")
    if table.get("disabled") is True or (foreign and table.get("enabled") is False):
        return None
    command, url = table.get("command") or "", table.get("url") or ""
    for key, value in (("command", command), ("url", url), ("cwd", table.get("cwd") or "")):
        if not isinstance(value, str):
            raise wrong(f"has no text as its {key}", f'write {key} = "..."')
    if bool(command) == bool(url):
        raise wrong("needs a command or a url, and not both", "leave one of them")
    kind = table.get("type")
    if url and kind not in (None, *HTTP):
        raise wrong(
            f"is of the type '{kind}'",
            "servers of the type http (streamable) are asked, and those that a command starts",
        )
    if url and not url.startswith(("http://", "https://")):
        raise wrong(f"has the address '{url}'", "it begins with http:// or https://")
    args = table.get("args") or []
    if not isinstance(args, list) or not all(isinstance(one, str) for one in args):
        raise wrong("has args that are no list of texts", 'write args = ["-y", "..."]')
    return ServerConfig(
        name,
        os.path.expanduser(command),
        tuple(args),
        texts(table, "env", wrong),
        os.path.expanduser(table["cwd"]) if table.get("cwd") else None,
        url,
        texts(table, "headers", wrong),
    )


def texts(table: dict[str, Any], key: str, wrong: Any) -> Pairs:
    """A table of texts."""
    found = table.get(key) or {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise wrong(f"has other than texts in {key}", f'write {key} = {{ NAME = "..." }}')
    return tuple(found.items())


def with_variables(pairs: Pairs) -> dict[str, str]:
    """The values with the variables that they name; DFlashError for one that is not set."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise DFlashError(f"the variable {found[1]} is not set", hint="set it")
        return os.environ[found[1]]

    return {name: VARIABLE.sub(value, text) for name, text in pairs}
