"""The server's socket and its connections, with uvicorn."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dflash_mlx.errors import DFlashError

from .app import Server
from .streams import StopSignal

HEAD_SECONDS = 15.0  # to receive a request's headers
STOP_SECONDS = 10  # for running answers when the server is stopped
ERROR_SHARE = 0.8  # of that time; then the answers that still run get an error
CONNECTIONS = 512
OTHER_FILES = 512  # that the process may have open beside its connections
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class Connection(H11Protocol):
    """A connection that is closed if the headers of a request do not come in time.

    uvicorn has a timer for the time after a response; here it runs before one, too. At the limit of
    connections, a new one takes the place of the one whose timer ends first.
    """

    _head_until = 0.0  # by the loop's clock

    def connection_made(self, transport: Any) -> None:
        others: set[Any] = self.connections
        idle = [one for one in others if one.timeout_keep_alive_task is not None]
        limit = self.limit_concurrency
        if idle and limit is not None and len(others) + 1 >= limit:
            first = min(idle, key=lambda one: one.timeout_keep_alive_task.when())
            first.timeout_keep_alive_handler()
            others.discard(first)
        super().connection_made(transport)
        self._head_until = self.loop.time() + HEAD_SECONDS
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()

    def on_response_complete(self) -> None:
        self._head_until = self.loop.time() + self.timeout_keep_alive + HEAD_SECONDS
        super().on_response_complete()

    def _expect_head(self) -> None:
        close = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_at(self._head_until, close)


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets of one port; port 0 takes a free one. Raises DFlashError if that fails.

    "localhost" is both 127.0.0.1 and, where IPv6 exists, ::1: programs try either.
    """
    sockets = list[socket.socket]()
    for name in ("127.0.0.1", "::1") if host == "localhost" else (host.strip("[]"),):
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        try:
            sockets.append(socket.create_server((name, port), family=family, backlog=256))
        except (OSError, OverflowError) as error:
            if sockets and getattr(error, "errno", None) in NO_IPV6:
                break
            for listening in sockets:
                listening.close()
            reason = getattr(error, "strerror", None) or str(error)
            reason = reason.partition(" (while attempting")[0]  # the address again
            raise DFlashError(
                f"the server cannot listen at {name}:{port} ({reason}).",
                hint="give another --port (0 takes a free one) or --host",
            ) from None
        port = sockets[0].getsockname()[1]
    return sockets


def allow_files(count: int) -> None:
    """Let this process have more open files and sockets; macOS allows 256 without being asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class StoppableServer(uvicorn.Server):
    """Calls `on_stop` before it waits for running answers, and sets `stopping` before it cuts them.

    uvicorn's messages about answers that it cuts are left out: the access log has these answers.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None], stopping: StopSignal):
        super().__init__(config)
        self._on_stop = on_stop
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        asyncio.get_running_loop().call_later(ERROR_SHARE * STOP_SECONDS, self._stopping.set)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def run(server: Server, listening: list[socket.socket], on_stop: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; running answers then have STOP_SECONDS to end.

    Those that do not end by themselves end with an error. `on_stop` is called before that time
    begins. A second Ctrl-C ends the answers at once.
    """
    allow_files(CONNECTIONS + OTHER_FILES)
    config = uvicorn.Config(
        server.app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=True,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    StoppableServer(config, on_stop, server.stopping).run(sockets=listening)
