"""HTTP to a server: a request with its key, and an answer's events while they come.

Knows no models and no JSON of theirs. Nothing is sent on to another address than the one given.
"""

import http.client
import json
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError

from .faults import NO_ENDPOINT, connection_fault, lost, status_fault

PATIENCE = 10.0  # seconds until a machine that says nothing at all counts as not there
LOOK = 0.1  # seconds between two looks at whether somebody wants to stop
ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
DONE = "[DONE]"


def send(
    url: str,
    key: str | None,
    body: dict[str, Any] | None = None,
    connected: Callable[[socket.socket], None] = lambda wire: None,
) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
    """Send a GET, or a POST of JSON; the response's head has come. DFlashError for other than 200.

    A POST may then take as long as it likes, as long as the other machine is there. `connected`
    gets the socket before anything is sent.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    assert parts.hostname
    # Without a port http.client looks for one behind the last colon, also of an IPv6 address.
    connection = kind(parts.hostname, parts.port or kind.default_port, timeout=PATIENCE)
    headers = {"Accept": "*/*", "User-Agent": f"dflash/{__version__}"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.connect()
        connected(connection.sock)
        if body is None:
            connection.request("GET", parts.path, headers=headers)
        else:
            wait_for_ever(connection.sock)
            headers["Content-Type"] = "application/json"
            data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
            connection.request("POST", parts.path, data, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise status_fault(response, api_of(url), key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        raise connection_fault(error, api_of(url)) from None
    except DFlashError:
        connection.close()
        raise
    return response, connection


def api_of(url: str) -> str:
    """The address of the API that an endpoint is of."""
    return url.removesuffix("/models").removesuffix("/chat/completions")


def wait_for_ever(wire: socket.socket) -> None:
    """Have the system find out when the other machine is gone, and nobody else."""
    wire.settimeout(None)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in ALIVE.items():
        if hasattr(socket, name):
            with suppress(OSError):
                wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def read_json(url: str, key: str | None) -> Any:
    """The JSON of a GET; DFlashError where there is none."""
    response, connection = send(url, key)
    try:
        return json.loads(response.read())
    except (ValueError, RecursionError):
        raise DFlashError(f"{api_of(url)} is no OpenAI-compatible API.", hint=NO_ENDPOINT) from None
    except (OSError, http.client.HTTPException) as error:
        raise connection_fault(error, api_of(url)) from None
    finally:
        connection.close()


class EventReader:
    """Reads one answer's lines in a thread, so that who waits for them can be interrupted."""

    def __init__(self, url: str, key: str | None, body: dict[str, Any]):
        self._asked, self._came = (url, key, body), SimpleQueue[str | Exception | None]()
        self._lock, self._closed = Lock(), False
        self._wire: socket.socket | None = None
        Thread(target=self._read, name="dflash-remote", daemon=True).start()

    def _read(self) -> None:
        url, key, body = self._asked
        try:
            response, connection = send(url, key, body, self._connected)
            try:
                if "event-stream" not in response.getheader("Content-Type", ""):
                    raise DFlashError(
                        f"{api_of(url)} does not stream its answer.",
                        hint="it has to know stream: true",
                    )
                while line := response.readline():
                    self._came.put(line.decode("utf-8", "replace").rstrip("\r\n"))
                self._came.put(None)
            finally:
                connection.close()
        except DFlashError as error:
            self._came.put(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._came.put(lost(api_of(url), type(error).__name__))

    def _connected(self, wire: socket.socket) -> None:
        """Keep what `close` has to cut; cut it where that was asked for before."""
        with self._lock:
            self._wire = wire
        if self._closed:
            self.close()

    def lines(self, waiting: Callable[[], None]) -> Generator[str]:
        """The lines until the end; `waiting` is called while there is none, and may raise."""
        while True:
            try:
                found = self._came.get(timeout=LOOK)
            except Empty:
                waiting()
                continue
            if found is None:
                return
            if isinstance(found, Exception):
                raise found
            yield found

    def close(self) -> None:
        """Cut the connection: the server stops its answer."""
        with self._lock:
            self._closed = True
            if self._wire is not None:
                with suppress(OSError):
                    # Not SSLSocket's: after it the other thread could send the key in the clear.
                    socket.socket.shutdown(self._wire, socket.SHUT_RDWR)


def events(lines: Generator[str], url: str) -> Generator[dict[str, Any]]:
    """The JSON objects of server-sent events, until [DONE] or the end. ServerLost for others."""
    data: list[str] = []
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            if name in ("data", "error"):  # the second is an old llama-server's
                data.append(value.removeprefix(" "))
            continue
        text, data = "\n".join(data), []
        if text == DONE:
            return
        if text:
            yield parsed(text, url)
    if data and (text := "\n".join(data)) != DONE:
        yield parsed(text, url)


def parsed(text: str, url: str) -> dict[str, Any]:
    """One event's object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise lost(url, "an event of it is no JSON")
    return found
