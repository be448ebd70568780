"""The MCP servers of the config file and of files of other programs. Starts nothing.

    [mcp.notes]
    command = "npx"
    args = ["-y", "notes-server"]

A table of the config file has the keys of Claude Desktop's JSON.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.errors import UsageError

from .config_file import config_path, read_config, tables_of

if TYPE_CHECKING:
    from dflash_mlx.tools.mcp import ServerConfig


def configured_servers(files: Sequence[Path] = ()) -> list["ServerConfig"]:
    """The servers of [mcp.NAME] and of the files; DFlashError for a wrong one or a name twice."""
    from dflash_mlx.tools.mcp import read_server_file, read_servers

    path = config_path()
    found = read_servers(tables_of(read_config(path), "mcp", path), f"in '{path}'")
    for file in files:
        for server in read_server_file(file):
            if server.name in [one.name for one in found]:
                raise UsageError(
                    f"the MCP server '{server.name}' of '{file}' is there already.",
                    hint="rename one of the two",
                )
            found.append(server)
    return found
