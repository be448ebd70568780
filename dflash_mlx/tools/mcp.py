"""MCP servers and their tools. An event loop in a thread of its own talks to the servers.

Callers wait in their own threads.
"""

import asyncio
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, Any, Literal

from dflash_mlx.errors import DFlashError, UsageError, first_line

from .functions import Tool

# The result of an MCP tool as text


def result_text(result: Any) -> str:
    """The text of a `CallToolResult`, one part per line; parts that are not text are named.

    A result without parts is its structured content as JSON.
    """
    parts = [part_text(part) for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def part_text(part: Any) -> str:
    if part.type == "text":
        return part.text
    if part.type == "resource_link":
        return f"[{part.name}: {part.uri}]"
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        return text if text is not None else f"[{part.resource.uri}: no text, left out]"
    return f"[{part.type} {part.mime_type}: left out, only text is read]"


# The configuration of servers

NAME = re.compile(r"[\w.-]{1,60}")
KEYS = ("command", "args", "env", "cwd", "url", "headers", "type", "disabled")
HTTP_TYPES = ("http", "streamable-http", "streamableHttp", "streamable_http")
SERVER_KEYS = ("mcpServers", "context_servers")  # Claude Desktop, Zed
VARIABLE = re.compile(r"\$\{(\w+)\}")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One server: a program to start (`command`), or an address (`url`).

    `${NAME}` in the values of `env` and `headers` is replaced by this environment variable.
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
        return self.url or " ".join((self.command, *self.args))


def read_server_file(path: str | Path) -> list[ServerConfig]:
    """The servers in another program's JSON file, without disabled ones.

    Unknown keys are ignored. Raises DFlashError for a file that cannot be read, has no servers, or
    has an invalid one.
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
    if not isinstance(document, dict):
        document = {}
    tables = next((document[key] for key in SERVER_KEYS if key in document), None)
    if not isinstance(tables, dict):
        raise DFlashError(
            f"the file '{path}' has no MCP servers.",
            hint='it should be {"mcpServers": {"NAME": {"command": "...", "args": [...]}}}',
        )
    return read_servers(tables, f"in '{path}'", foreign=True)


def read_servers(
    tables: Mapping[str, Any], place: str, *, foreign: bool = False
) -> list[ServerConfig]:
    """Without disabled ones. tables: by name. place: for errors. foreign: ignore unknown keys."""
    servers = [server_of(name, table, place, foreign=foreign) for name, table in tables.items()]
    return [server for server in servers if server is not None]


def server_of(name: str, table: Any, place: str, *, foreign: bool) -> ServerConfig | None:
    """One server; None if it is disabled. Raises DFlashError for an invalid one."""

    def invalid(fault: str, hint: str) -> DFlashError:
        return DFlashError(f"the MCP server '{name}' {place} {fault}.", hint=hint)

    if not NAME.fullmatch(name):
        raise invalid("has a name that cannot be", "use letters, digits and . _ -")
    if not isinstance(table, dict):
        raise invalid("is no table", 'write command = "..." and args = [...], or url = "..."')
    if unknown := [key for key in table if key not in KEYS and not foreign]:
        raise invalid(f"has the key '{unknown[0]}'", f"keys: {', '.join(KEYS)}")
    if table.get("disabled") is True or (foreign and table.get("enabled") is False):
        return None
    command = table.get("command") or ""
    url = table.get("url") or ""
    for key, value in (("command", command), ("url", url), ("cwd", table.get("cwd") or "")):
        if not isinstance(value, str):
            raise invalid(f"has no text as its {key}", f'write {key} = "..."')
    if bool(command) == bool(url):
        raise invalid("needs a command or a url, and not both", "leave one of them")
    server_type = table.get("type")
    if url and server_type not in (None, *HTTP_TYPES):
        raise invalid(
            f"is of the type '{server_type}'",
            "servers of the type http (streamable) are asked, and those that a command starts",
        )
    if url and not url.startswith(("http://", "https://")):
        raise invalid(f"has the address '{url}'", "it begins with http:// or https://")
    args = table.get("args") or []
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise invalid("has args that are no list of texts", 'write args = ["-y", "..."]')
    return ServerConfig(
        name,
        os.path.expanduser(command),
        tuple(args),
        texts(table, "env", invalid),
        os.path.expanduser(table["cwd"]) if table.get("cwd") else None,
        url,
        texts(table, "headers", invalid),
    )


def texts(table: dict[str, Any], key: str, invalid: Callable[[str, str], DFlashError]) -> Pairs:
    values = table.get(key) or {}
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        raise invalid(f"has other than texts in {key}", f'write {key} = {{ NAME = "..." }}')
    return tuple(values.items())


def with_variables(pairs: Pairs) -> dict[str, str]:
    """The pairs with ${NAME} replaced. Raises DFlashError for a variable that is not set."""

    def value_of(variable: re.Match[str]) -> str:
        name = variable[1]
        if name not in os.environ:
            raise DFlashError(f"the variable {name} is not set", hint="set it")
        return os.environ[name]

    return {name: VARIABLE.sub(value_of, text) for name, text in pairs}


# Running servers

START_SECONDS = 30.0  # until a server must have listed its tools
STOP_SECONDS = 10.0  # to wait for the end of servers; the mcp package kills them earlier
POLL_SECONDS = 0.2  # Ctrl-C does not interrupt waiting for a lock on every system
ServerState = Literal["starting", "running", "failed", "off"]


@dataclass(slots=True)
class McpServer:
    """A server and its state. why: the reason of a failure. tools: named as on the server.

    client: the mcp package's client, while the server runs. stopping: set to end the server.
    deadline: the timeout of its start.
    """

    config: ServerConfig
    state: ServerState = "off"
    why: str = ""
    tools: tuple[Tool, ...] = ()
    client: Any = None
    stopping: asyncio.Event | None = None
    deadline: asyncio.Timeout | None = None
    task: Future[None] | None = None


class Servers:
    """Starts MCP servers, and ends them on `close` or at the end of a `with` block.

    Any thread may call its methods. Raises UsageError if two servers have the same name.
    """

    def __init__(self, configs: Iterable[ServerConfig]):
        self.all = [McpServer(config) for config in configs]
        names = Counter(server.config.name for server in self.all)
        for name, count in names.items():
            if count > 1:
                raise UsageError(
                    f"there are {count} MCP servers named '{name}'.", hint="rename one of them"
                )
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        self.start()

    def __enter__(self) -> "Servers":
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the servers that do not run, without waiting for them."""
        for server in self.all:
            if server.state in ("off", "failed"):
                server.state = "starting"
                server.why = ""
                server.tools = ()
                server.stopping = asyncio.Event()
                server.deadline = None
                run = self._run(server, server.stopping)
                server.task = asyncio.run_coroutine_threadsafe(run, self._loop)

    def wait(self) -> None:
        while any(server.state == "starting" for server in self.all):
            time.sleep(0.01)

    @property
    def tools(self) -> list[Tool]:
        """The tools of the running servers, with names that models can call.

        If two servers have a tool of the same name, the server's name is put before it.
        """
        running = [server for server in self.all if server.state == "running"]
        tools = [tool for server in running for tool in server.tools]
        counts = Counter(callable_name(tool.key) for tool in tools)
        renamed = []
        for tool in tools:
            name = callable_name(tool.key)
            if counts[name] > 1:
                name = f"{callable_name(tool.server)}__{name}"
            renamed.append(replace(tool, name=name))
        return renamed

    def stop(self) -> None:
        """End the servers; `start` starts them again."""
        started = [server for server in self.all if server.stopping is not None]
        for server in started:
            self._loop.call_soon_threadsafe(request_stop, server)
        deadline = time.monotonic() + STOP_SECONDS
        for server in started:
            with suppress(FutureTimeout, Exception):
                if server.task is not None:
                    server.task.result(max(deadline - time.monotonic(), 0))
            server.state = "off"
            server.tools = ()
            server.stopping = None

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    # In the thread of the event loop --------------------------------------------------------------

    async def _run(self, server: McpServer, stopping: asyncio.Event) -> None:
        """Run a server from its start to its end; errors become its state."""
        from mcp import Client

        if stopping.is_set():
            return
        with tempfile.TemporaryFile("w+", errors="replace") as stderr:
            try:
                async with asyncio.timeout(START_SECONDS) as server.deadline:
                    async with Client(transport(server.config, stderr)) as client:
                        server.tools = await self._list_tools(server, client)
                        server.client = client
                        server.state = "running"
                        server.deadline.reschedule(None)
                        await stopping.wait()
            except Exception as error:
                if server.state == "starting" or not stopping.is_set():
                    server.state = "failed"
                    server.why = failure_reason(error, server.config, stderr)
            finally:
                server.client = None
                server.tools = ()

    async def _list_tools(self, server: McpServer, client: Any) -> tuple[Tool, ...]:
        tools = []
        page = await client.list_tools()
        while True:
            for tool in page.tools:
                run = partial(self._call, server, tool.name)
                description = tool.description or tool.title or ""
                name = server.config.name
                tools.append(Tool(tool.name, description, tool.input_schema, run, name, tool.name))
            if not page.next_cursor:
                return tuple(tools)
            page = await client.list_tools(cursor=page.next_cursor)

    # In the thread of a caller --------------------------------------------------------------------

    def _call(self, server: McpServer, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool and wait for its result; an exception while waiting (Ctrl-C) cancels it.

        Raises DFlashError if the call fails.
        """
        client = server.client
        if client is None:
            raise DFlashError(f"the MCP server '{server.config.name}' does not run any more.")
        call = asyncio.run_coroutine_threadsafe(client.call_tool(tool, arguments), self._loop)
        try:
            while not call.done():
                with suppress(FutureTimeout):
                    call.result(POLL_SECONDS)
            result = call.result()
        except Exception as error:
            self._note_end(server, error)
            raise DFlashError(first_line(innermost(error))) from error
        finally:
            call.cancel()
        if result.is_error:
            raise DFlashError(result_text(result) or "the tool failed and says no more")
        return result_text(result)

    def _note_end(self, server: McpServer, error: BaseException) -> None:
        from mcp_types import CONNECTION_CLOSED

        if getattr(error, "code", None) == CONNECTION_CLOSED and server.stopping is not None:
            server.state = "failed"
            server.why = "it ended"
            self._loop.call_soon_threadsafe(request_stop, server)


def request_stop(server: McpServer) -> None:
    """Make a server end, also while it starts. Must run in the thread of the event loop."""
    if server.stopping is not None:
        server.stopping.set()
    if server.state == "starting" and server.deadline is not None:
        server.deadline.reschedule(asyncio.get_running_loop().time())


def transport(config: ServerConfig, stderr: IO[str]) -> Any:
    """The mcp package's transport for a server. stderr: a file for the program's messages."""
    if config.url:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = with_variables(config.headers)
        timeout = httpx2.Timeout(30.0, read=300.0)  # a tool may take minutes
        client = httpx2.AsyncClient(headers=headers, timeout=timeout)
        return streamable_http_client(config.url, http_client=client)
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program = StdioServerParameters(
        command=config.command,
        args=[*config.args],
        env=with_variables(config.env),
        cwd=config.cwd,
    )
    return stdio_client(program, errlog=stderr)  # type: ignore[arg-type]


def failure_reason(error: BaseException, config: ServerConfig, stderr: IO[str]) -> str:
    """Why a server failed, as the end of a sentence."""
    if isinstance(error, TimeoutError):
        return f"it told no tools within {START_SECONDS:.0f} seconds"
    error = innermost(error)
    if isinstance(error, FileNotFoundError) and config.command:
        missing = config.cwd if config.cwd and str(error.filename) == config.cwd else config.command
        return f"there is no '{missing}'"
    if isinstance(error, DFlashError):
        return error.message
    stderr.seek(0)
    lines = [line.strip() for line in stderr if line.strip()]
    reason = lines[-1] if lines else f"{type(error).__name__}: {first_line(error)}"
    return reason[:200]


def innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def callable_name(name: str) -> str:
    """The name with only those characters that every format of calls allows."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100]
