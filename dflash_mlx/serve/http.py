"""Runs the endpoints on a socket with uvicorn; a client that is slow to ask is cut off.

uvicorn ends idle connections between requests, and waits for ever for a head that is never whole.
"""

import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dflash_mlx.errors import DFlashError

HEAD_SECONDS = 15.0  # in which a request's head has to come
STOP_SECONDS = 10  # that running answers have when the server is stopped
CONNECTIONS = 512


class Connection(H11Protocol):
    """A connection that is closed where a request's head does not come in time."""

    _deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        """Somebody has connected."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not answering:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is a free one. DFlashError where that cannot be."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found = socket.create_server((host.strip("[]"), port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DFlashError(
            f"the server cannot listen at {host}:{port} ({reason}).",
            hint="give another --port (0 takes a free one) or --host",
        ) from None
    found.set_inheritable(True)
    return found


def run(app: Any, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM; answers that run then have STOP_SECONDS to end."""
    config = uvicorn.Config(
        app,
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
    uvicorn.Server(config).run(sockets=[listening])
