"""A folder of two files, sums and the time: as functions, and run as a program, an MCP server."""

from mcp.server import MCPServer

FILES = {"notes.txt": "Buy milk on Friday.", "plan.txt": "Meet Kim at 10:30."}


def list_folder(folder: str) -> list[str]:
    """List the files in a folder."""
    return sorted(FILES)


def read_file(path: str) -> str:
    """Read a text file."""
    return FILES[path]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def get_time() -> str:
    """Get the current time."""
    return "14:35"


TOOLS = (list_folder, read_file, add, get_time)

if __name__ == "__main__":
    server = MCPServer("desk")
    for function in TOOLS:
        server.tool()(function)
    server.run()
