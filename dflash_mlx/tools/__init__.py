"""Tools that a model calls: Python functions and those of MCP servers, and the loop that runs them.

from dflash_mlx import load, tools

def weather(city: str) -> str:
    "What the weather is like in a city."
    return "rain"

print(tools.run(load("mlx-community/Qwen3-4B-4bit"), "Is it dry in Brno?", [weather]).text)

with tools.Servers(tools.read_server_file("claude_desktop_config.json")) as servers:
    tools.run(pair, "What is in my notes?", servers.tools)
"""

from .call import Call, Step
from .run import Answered, run
from .server_config import ServerConfig, read_server_file
from .servers import Servers
from .tool import Tool, tool_of

__all__ = [
    "Answered",
    "Call",
    "ServerConfig",
    "Servers",
    "Step",
    "Tool",
    "read_server_file",
    "run",
    "tool_of",
]
