"""HTTP requests to a server, and the events of a streamed answer.

Redirects are not followed, so the key is only sent to the given address.
"""

import http.client
import json
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError, ServerLost, first_line
from dflash_mlx.text import whole_text

if TYPE_CHECKING:
    from http.client import HTTPResponse


# Errors between client and server

NO_ENDPOINT = "give the address of an OpenAI-compatible API, which mostly ends with /v1"
KEY_HINT = (
    "put the server's key into DFLASH_REMOTE_KEY, or its file's name behind --remote-key-file"
)


def connection_fault(error: Exception, url: str) -> DFlashError:
    import ssl
    from http.client import HTTPException, RemoteDisconnected

    if isinstance(error, ssl.SSLCertVerificationError):
        reason = getattr(error, "verify_message", "") or first_line(error)
        return DFlashError(
            f"the certificate of {url} is not trusted ({reason}).",
            hint="SSL_CERT_FILE can name the file of an authority that you trust",
        )
    if isinstance(error, ssl.SSLError):
        return DFlashError(
            f"{url} does not speak TLS ({first_line(error)}).", hint="try http:// in its place"
        )
    if isinstance(error, socket.gaierror):
        return DFlashError(f"the machine of {url} is not known.", hint="check its name")
    if isinstance(error, TimeoutError):
        return DFlashError(
            f"{url} does not answer.", hint="check the address, and that the machine is awake"
        )
    if isinstance(error, RemoteDisconnected):
        return DFlashError(
            f"{url} closed the connection without an answer.",
            hint="its log may say why; then ask again",
        )
    if isinstance(error, HTTPException):
        return DFlashError(
            f"the server at {url} does not speak HTTP ({type(error).__name__}).",
            hint="check the port, and whether it is https://",
        )
    reason = getattr(error, "strerror", None) or first_line(error)
    return DFlashError(
        f"{url} cannot be reached ({reason}).",
        hint="check address and port, and that the server runs: `dflash serve` on that machine",
    )


def broken_off(url: str, why: str) -> ServerLost:
    return ServerLost(
        f"the answer of {url} broke off ({why}).", hint="the text so far is kept; ask again"
    )


def status_fault(response: "HTTPResponse", url: str, key: str | None) -> DFlashError:
    """The error for a status that is not 200, with the message in the body."""
    status = response.status
    message = body_message(response.read(100_000), key)
    details = f" ({status}: {message})" if message else f" ({status})"
    if status in (401, 403):  # without the message, in which servers repeat the key
        fault = f"refuses the key ({status})" if key else f"wants a key ({status})"
        return DFlashError(f"{url} {fault}.", hint=KEY_HINT)
    if 300 <= status < 400:
        location = response.getheader("Location", "another place")[:200]
        return DFlashError(f"{url} redirects to {location} ({status}).", hint="give that address")
    if status == 404 and "model" in message.lower():
        return DFlashError(
            f"{url} does not have this model{details}.", hint="name one of its models behind a #"
        )
    if status in (404, 405):
        return DFlashError(f"{url} is not an OpenAI-compatible API{details}.", hint=NO_ENDPOINT)
    if status == 429:
        seconds = response.getheader("Retry-After", "")
        hint = f"ask again in {seconds} seconds" if seconds.isdecimal() else "ask again later"
        return DFlashError(f"{url} is too busy for another request{details}.", hint=hint)
    if status >= 500:
        return DFlashError(f"{url} has failed{details}.", hint="its log says more")
    return DFlashError(f"{url} refuses the request{details}.", hint="change what it names")


def body_message(body: bytes, key: str | None) -> str:
    """The message in the body of an error, on one line and without the key; empty for HTML."""
    text = body.decode("utf-8", "replace")
    try:
        text = error_message(json.loads(text))
    except (ValueError, RecursionError):
        text = "" if text.lstrip().startswith("<") else text
    text = " ".join(text.split())[:300].rstrip(".")
    return text.replace(key, "…") if key else text


def error_message(error: Any) -> str:
    """The message in an error's JSON object, by the names that servers use."""
    while isinstance(error, dict):
        error = next((error[n] for n in ("error", "message", "detail") if error.get(n)), "")
    return error if isinstance(error, str) else json.dumps(error)


# Requests


CONNECT_TIMEOUT = 10.0  # seconds
POLL_SECONDS = 0.1  # between two calls of `waiting`
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
DONE = "[DONE]"


def send(
    url: str,
    key: str | None,
    body: dict[str, Any] | None = None,
    connected: Callable[[socket.socket], None] = lambda sock: None,
) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
    """Send a GET, or with a body a POST of JSON, and wait for the response's headers.

    connected: gets the socket before anything is sent. A POST has no timeout once it is connected;
    TCP keepalive detects a lost machine. Raises DFlashError if the status is not 200.
    """
    parts = urlsplit(url)
    is_https = parts.scheme == "https"
    connection_type = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
    assert parts.hostname
    # Without a port http.client takes the last part of an IPv6 address for one.
    port = parts.port or connection_type.default_port
    connection = connection_type(parts.hostname, port, timeout=CONNECT_TIMEOUT)
    headers = {"Accept": "*/*", "User-Agent": f"dflash/{__version__}"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.connect()
        connected(connection.sock)
        if body is None:
            connection.request("GET", parts.path, headers=headers)
        else:
            use_keepalive(connection.sock)
            headers["Content-Type"] = "application/json"
            data = whole_text(json.dumps(body, ensure_ascii=False)).encode()
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
    """The address of the API without the endpoint."""
    for endpoint in ("/models", "/models/unload", "/chat/completions"):
        url = url.removesuffix(endpoint)
    return url


def use_keepalive(sock: socket.socket) -> None:
    """Replace the timeout by TCP keepalive, which detects a lost machine after 35 seconds."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def read_json(url: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    """The JSON of a GET, or with a body of a POST. Raises DFlashError if there is none."""
    response, connection = send(url, key, body)
    try:
        return json.loads(response.read())
    except (ValueError, RecursionError):
        raise DFlashError(
            f"{api_of(url)} is not an OpenAI-compatible API.", hint=NO_ENDPOINT
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise connection_fault(error, api_of(url)) from None
    finally:
        connection.close()


class EventReader:
    """Reads one answer's lines in a thread, so that waiting for them can be interrupted."""

    def __init__(self, url: str, key: str | None, body: dict[str, Any]):
        self._url = url
        self._key = key
        self._body = body
        self._lines = SimpleQueue[str | Exception | None]()  # None: the end
        self._lock = Lock()
        self._closed = False
        self._socket: socket.socket | None = None
        Thread(target=self._read, name="dflash-remote", daemon=True).start()

    def _read(self) -> None:
        url = self._url
        try:
            response, connection = send(url, self._key, self._body, self._connected)
            try:
                if "event-stream" not in response.getheader("Content-Type", ""):
                    raise DFlashError(
                        f"{api_of(url)} does not stream its answer.",
                        hint="it has to know stream: true",
                    )
                while line := response.readline():
                    self._lines.put(line.decode("utf-8", "replace").rstrip("\r\n"))
                self._lines.put(None)
            finally:
                connection.close()
        except DFlashError as error:
            self._lines.put(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._lines.put(broken_off(api_of(url), type(error).__name__))

    def _connected(self, sock: socket.socket) -> None:
        """Keep the socket for `close`; shut it down if `close` was called before."""
        with self._lock:
            self._socket = sock
        if self._closed:
            self.close()

    def lines(self, waiting: Callable[[], None]) -> Generator[str]:
        """The lines until the end. waiting: called while there is none, and may raise."""
        while True:
            try:
                line = self._lines.get(timeout=POLL_SECONDS)
            except Empty:
                waiting()
                continue
            if line is None:
                return
            if isinstance(line, Exception):
                raise line
            yield line

    def close(self) -> None:
        """Close the connection, so that the server stops its answer."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                with suppress(OSError):
                    # SSLSocket.shutdown removes TLS: the other thread could then send the key
                    # unencrypted.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def events(lines: Generator[str], url: str) -> Generator[dict[str, Any]]:
    """The JSON objects until [DONE] or the end. Raises ServerLost for any other event."""
    data: list[str] = []
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            if name in ("data", "error"):  # old versions of llama-server send "error"
                data.append(value.removeprefix(" "))
            continue
        text = "\n".join(data)
        data = []
        if text == DONE:
            return
        if text:
            yield event_object(text, url)
    if data and (text := "\n".join(data)) != DONE:
        yield event_object(text, url)


def event_object(text: str, url: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise broken_off(url, "an event of it is no JSON")
    return event
