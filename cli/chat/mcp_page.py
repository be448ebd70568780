"""`/mcp`: the MCP servers and their tools; whether the model is told of them; what is allowed."""

from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions

from ..config_file import config_path
from ..terminal.output import format_count
from ..terminal.spinner import Spinner
from .state import ChatState, shorten
from .tools import key_of

WORDS = ("on", "off", "ask")


def manage_servers(state: ChatState, argument: str) -> None:
    """`/mcp`: on starts what does not run, off tells no tools, ask forgets what is allowed."""
    box = state.dialogue.tools
    if argument not in ("", *WORDS):
        raise UsageError(f"/mcp cannot be '{argument}'.", hint="use on, off, ask, or nothing")
    if box.servers is None or box.permissions is None:
        state.print_line(
            f"  no MCP servers; [mcp.NAME] in {config_path()} makes one, --mcp FILE.json takes "
            "another program's"
        )
    elif argument == "off":
        box.on = False
        state.print_line("  the model is told of no tools; the servers run on", "dim")
    elif argument == "ask":
        box.permissions.forget()
        state.print_line("  nothing is allowed any more: each call is asked about", "dim")
    else:
        if argument == "on":
            box.on = True
            box.servers.start()
            with Spinner(state.out, "starting the MCP servers"):
                box.servers.wait()
        show_servers(state)


def show_servers(state: ChatState) -> None:
    """The servers with their state, and their tools with what is allowed."""
    dialogue = state.dialogue
    box = dialogue.tools
    assert box.servers is not None
    assert box.permissions is not None
    width = max(len(server.config.name) for server in box.servers.all) + 2
    named = {(tool.server, tool.key): tool for tool in box.servers.tools}
    for server in box.servers.all:
        about = f"{server.state}: {server.why}" if server.why else server.state
        if server.tools:
            about += f" · {format_count(len(server.tools), 'tool', 'tools')}"
        state.print_line(
            f"  {server.config.name:{width}}{about} · {shorten(server.config.source, 60)}"
        )
        for tool in server.tools:
            allowed = box.permissions.state(key_of(server.config, tool.key))
            allowed = {"session": " · allowed in this session", "always": " · always allowed"}.get(
                allowed, ""
            )
            name = named[tool.server, tool.key].name
            state.print_line(f"    {name}  {shorten(tool.description, 60)}{allowed}", "dim")
    if why := dialogue.backend.no_tools_reason():
        state.print_line(f"  this model {why}: it is told of none of these", "warning")
    elif not box.on:
        state.print_line("  the model is told of none of these; /mcp on changes that", "warning")
    else:
        box.tell(dialogue.backend)
        asked = [{"role": "user", "content": "?"}]
        told = dialogue.backend.count_tokens(asked, GenerationOptions(tools=box.schemas))
        bare = dialogue.backend.count_tokens(asked, GenerationOptions())
        if told is None or bare is None:
            state.print_line("  the model is told of these", "dim")
            return
        count = format_count(told - bare, "token", "tokens")
        state.print_line(f"  the model is told of these in {count} of its context", "dim")
