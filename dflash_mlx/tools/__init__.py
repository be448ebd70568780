"""Lets a model call tools: Python functions, and the tools of MCP servers.

from dflash_mlx import load, tools

def weather(city: str) -> str:
    "What the weather is like in a city."
    return "rain"

pair = load("mlx-community/Qwen3-4B-4bit")
print(tools.run(pair, "Is it dry in Brno?", [weather]).text)

with tools.Servers(tools.read_server_file("claude_desktop_config.json")) as servers:
    tools.run(pair, "What is in my notes?", servers.tools)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .call import Call, Step
    from .functions import Tool, tool_of
    from .loop import Answered, run
    from .mcp import ServerConfig, Servers, read_server_file

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
_MODULES = {
    "Answered": "loop",
    "Call": "call",
    "ServerConfig": "mcp",
    "Servers": "mcp",
    "Step": "call",
    "Tool": "functions",
    "read_server_file": "mcp",
    "run": "loop",
    "tool_of": "functions",
}


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dflash_mlx.tools' has no attribute '{name}'")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
