"""MCP servers: started, asked for their tools, and called, by an event loop in a thread of its own.

Callers wait in their own threads; nothing else here is asynchronous.
"""

import asyncio
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Any, Literal

from dflash_mlx.errors import DFlashError, UsageError, first_line

from .functions import Tool

# What an MCP tool gives back, as text for a model.


def result_text(result: Any) -> str:
    """The texts of a `CallToolResult`, a line break between them; what is no text is named.

    Structured content stands for a result without any.
    """
    parts = [part_text(part) for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def part_text(part: Any) -> str:
    """One part."""
    if part.type == "text":
        return part.text
    if part.type == "resource_link":
        return f"[{part.name}: {part.uri}]"
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        return text if text is not None else f"[{part.resource.uri}: no text, left out]"
    return f"[{part.type} {part.mime_type}: left out, only text is read]"


# MCP servers as they are configured

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
    command = table.get("command") or ""
    url = table.get("url") or ""
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
                server.state = "starting"
                server.why = ""
                server.tools = ()
                server.leave = asyncio.Event()
                server.limit = None
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
            server.state = "off"
            server.tools = ()
            server.leave = None

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
                        server.client = client
                        server.state = "running"
                        server.limit.reschedule(None)
                        await leave.wait()
            except Exception as error:
                if server.state == "starting" or not leave.is_set():
                    server.state, server.why = "failed", why(error, server.config, said)
            finally:
                server.client = None
                server.tools = ()

    async def _listed(self, server: Server, client: Any) -> tuple[Tool, ...]:
        """The tools of a server."""
        found = []
        page = await client.list_tools()
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
            server.state = "failed"
            server.why = "it ended"
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
