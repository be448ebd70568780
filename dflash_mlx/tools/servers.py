"""MCP servers: started, asked for their tools, and called, by an event loop in a thread of its own.

Callers wait in their own threads; nothing else here is asynchronous. Knows no models.
"""

import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from threading import Thread
from types import TracebackType
from typing import IO, Any, Literal

from dflash_mlx.errors import DFlashError, UsageError, first_line

from .result_text import result_text
from .server_config import ServerConfig, with_variables
from .tool import Tool

START_SECONDS = 30.0  # in which a server has to tell its tools
LEAVE_SECONDS = 10.0  # in which servers have to end; each is killed before that
WAKE_SECONDS = 0.2  # a lock cannot be interrupted everywhere
ServerState = Literal["starting", "running", "failed", "off"]


@dataclass(slots=True)
class Server:
    """A server: its state, why it failed, and its tools by the names that it has for them."""

    config: ServerConfig
    state: ServerState = "off"
    why: str = ""
    tools: tuple[Tool, ...] = ()
    client: Any = None
    leave: asyncio.Event | None = None
    limit: asyncio.Timeout | None = None  # of its start
    task: Future[None] | None = None


class Servers:
    """Some MCP servers, started at once; a context manager, or ended by `close`.

    Any thread may call its methods. Raises DFlashError where the package mcp is missing, and
    UsageError for two servers of one name.
    """

    def __init__(self, configs: Iterable[ServerConfig]):
        if find_spec("mcp") is None:
            raise DFlashError(
                "MCP servers need the package mcp, which is not installed.",
                hint="`uv pip install -e '.[mcp]'` in the clone of dflash-chat",
            )
        self.all = [Server(config) for config in configs]
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the servers that do not run, and do not wait for them."""
        for server in self.all:
            if server.state in ("off", "failed"):
                server.state, server.why, server.tools = "starting", "", ()
                server.leave, server.limit = asyncio.Event(), None
                live = self._live(server, server.leave)
                server.task = asyncio.run_coroutine_threadsafe(live, self._loop)

    def wait(self) -> None:
        """Until every server runs or has failed."""
        while any(server.state == "starting" for server in self.all):
            time.sleep(0.01)

    @property
    def tools(self) -> list[Tool]:
        """The tools of the servers that run, each with a name that models can call.

        A name that two servers have gets the server's before it.
        """
        running = [server for server in self.all if server.state == "running"]
        found = [tool for server in running for tool in server.tools]
        counts = Counter(callable_name(tool.key) for tool in found)
        named = []
        for tool in found:
            name = callable_name(tool.key)
            if counts[name] > 1:
                name = f"{callable_name(tool.server)}__{name}"
            named.append(replace(tool, name=name))
        return named

    def stop(self) -> None:
        """End the servers; `start` starts them again."""
        ending = [server for server in self.all if server.leave is not None]
        for server in ending:
            self._loop.call_soon_threadsafe(end, server)
        until = time.monotonic() + LEAVE_SECONDS
        for server in ending:
            with suppress(NotYet, Exception):
                if server.task is not None:
                    server.task.result(max(until - time.monotonic(), 0))
            server.state, server.tools, server.leave = "off", (), None

    def close(self) -> None:
        """End the servers and the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LEAVE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    # In the thread of the loop --------------------------------------------------------------------

    async def _live(self, server: Server, leave: asyncio.Event) -> None:
        """One server from its start to its end; what goes wrong is its state."""
        from mcp import Client

        if leave.is_set():
            return
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            try:
                async with asyncio.timeout(START_SECONDS) as server.limit:
                    async with Client(transport(server.config, said)) as client:
                        server.tools = await self._listed(server, client)
                        server.client, server.state = client, "running"
                        server.limit.reschedule(None)
                        await leave.wait()
            except Exception as error:
                if server.state == "starting" or not leave.is_set():
                    server.state, server.why = "failed", why(error, server.config, said)
            finally:
                server.client, server.tools = None, ()

    async def _listed(self, server: Server, client: Any) -> tuple[Tool, ...]:
        """The tools of a server."""
        found, page = [], await client.list_tools()
        while True:
            for tool in page.tools:
                run = partial(self._call, server, tool.name)
                about = tool.description or tool.title or ""
                name = server.config.name
                found.append(Tool(tool.name, about, tool.input_schema, run, name, tool.name))
            if not page.next_cursor:
                return tuple(found)
            page = await client.list_tools(cursor=page.next_cursor)

    # In the thread of a caller --------------------------------------------------------------------

    def _call(self, server: Server, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool and wait; what ends the waiting, such as Ctrl-C, ends the call.

        Raises DFlashError for a result that is an error.
        """
        client = server.client
        if client is None:
            raise DFlashError(f"the MCP server '{server.config.name}' does not run any more.")
        call = asyncio.run_coroutine_threadsafe(client.call_tool(tool, arguments), self._loop)
        try:
            while not call.done():
                with suppress(NotYet):
                    call.result(WAKE_SECONDS)
            found = call.result()
        except Exception as error:
            self._check_alive(server, error)
            raise DFlashError(first_line(innermost(error))) from error
        finally:
            call.cancel()
        if found.is_error:
            raise DFlashError(result_text(found) or "the tool failed and says no more")
        return result_text(found)

    def _check_alive(self, server: Server, error: BaseException) -> None:
        """Note that a server has ended."""
        from mcp_types import CONNECTION_CLOSED

        if getattr(error, "code", None) == CONNECTION_CLOSED and server.leave is not None:
            server.state, server.why = "failed", "it ended"
            self._loop.call_soon_threadsafe(end, server)


def end(server: Server) -> None:
    """Have a server leave, also where it has not started yet; in the thread of the loop."""
    if server.leave is not None:
        server.leave.set()
    if server.state == "starting" and server.limit is not None:
        server.limit.reschedule(asyncio.get_running_loop().time())


def transport(config: ServerConfig, said: IO[str]) -> Any:
    """What a client talks through; a program's messages on stderr go to the file `said`."""
    if config.url:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = with_variables(config.headers)
        timeout = httpx2.Timeout(30.0, read=300.0)  # a result may take its time
        client = httpx2.AsyncClient(headers=headers, timeout=timeout)
        return streamable_http_client(config.url, http_client=client)
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program = StdioServerParameters(
        command=config.command,
        args=[*config.args],
        env=with_variables(config.env),
        cwd=config.cwd,
    )
    return stdio_client(program, errlog=said)  # type: ignore[arg-type]


def why(error: BaseException, config: ServerConfig, said: IO[str]) -> str:
    """Why a server does not run, as the end of a sentence."""
    if isinstance(error, TimeoutError):
        return f"it told no tools within {START_SECONDS:.0f} seconds"
    error = innermost(error)
    if isinstance(error, FileNotFoundError) and config.command:
        missing = config.cwd if config.cwd and str(error.filename) == config.cwd else config.command
        return f"there is no '{missing}'"
    if isinstance(error, DFlashError):
        return error.message
    said.seek(0)
    lines = [line.strip() for line in said if line.strip()]
    return (lines[-1] if lines else f"{type(error).__name__}: {first_line(error)}")[:200]


def innermost(error: BaseException) -> BaseException:
    """The first error of a group; what failed is there, and the rest followed."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def callable_name(name: str) -> str:
    """A name with the characters that every form of calls has."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100]
