"""HTTP to a server: a request with its key, and an answer's events while they come.

Nothing is sent on to another address than the one given.
"""

import http.client
import json
import re
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError, ServerLost, UsageError, first_line

if TYPE_CHECKING:
    from http.client import HTTPResponse


# What goes wrong between a client and a server, each as one sentence.

NO_ENDPOINT = "give the address of an OpenAI-compatible API, which mostly ends with /v1"
KEY_HINT = (
    "put the server's key into DFLASH_REMOTE_KEY, or its file's name behind --remote-key-file"
)


def connection_fault(error: Exception, url: str) -> DFlashError:
    """A connection that did not come about, or ended before an answer began."""
    import socket
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
            f"what answers at {url} is no HTTP server ({type(error).__name__}).",
            hint="check the port, and whether it is https://",
        )
    reason = getattr(error, "strerror", None) or first_line(error)
    return DFlashError(
        f"{url} cannot be reached ({reason}).",
        hint="check address and port, and that the server runs: `dflash serve` on that machine",
    )


def lost(url: str, why: str) -> ServerLost:
    """An answer that broke off in its middle."""
    return ServerLost(
        f"the answer of {url} broke off ({why}).", hint="what came of it stays; ask again"
    )


def status_fault(response: "HTTPResponse", url: str, key: str | None) -> DFlashError:
    """A status that is not 200, with what the body says of it."""
    status = response.status
    said = said_in(response.read(100_000), key)
    told = f" ({status}: {said})" if said else f" ({status})"
    if status in (401, 403):  # servers repeat keys in what they say of this
        what = f"refuses the key ({status})" if key else f"wants a key ({status})"
        return DFlashError(f"{url} {what}.", hint=KEY_HINT)
    if 300 <= status < 400:
        place = response.getheader("Location", "another place")[:200]
        return DFlashError(f"{url} sends on to {place} ({status}).", hint="give that address")
    if status == 404 and "model" in said.lower():
        return DFlashError(
            f"{url} does not have this model{told}.", hint="name one of its models behind a #"
        )
    if status in (404, 405):
        return DFlashError(f"{url} is no OpenAI-compatible API{told}.", hint=NO_ENDPOINT)
    if status == 429:
        after = response.getheader("Retry-After", "")
        hint = f"ask again in {after} seconds" if after.isdecimal() else "ask again later"
        return DFlashError(f"{url} takes no more requests now{told}.", hint=hint)
    if status >= 500:
        return DFlashError(f"{url} has failed{told}.", hint="its log says more")
    return DFlashError(f"{url} refuses the request{told}.", hint="change what it names")


def said_in(body: bytes, key: str | None) -> str:
    """The sentence in the body of an error, on one line and without the key."""
    text = body.decode("utf-8", "replace")
    try:
        text = message_of(json.loads(text))
    except (ValueError, RecursionError):
        text = "" if text.lstrip().startswith("<") else text
    text = " ".join(text.split())[:300].rstrip(".")
    return text.replace(key, "…") if key else text


def message_of(found: Any) -> str:
    """The sentence in the object of an error, as the servers write it."""
    while isinstance(found, dict):
        found = next((found[n] for n in ("error", "message", "detail") if found.get(n)), "")
    return found if isinstance(found, str) else json.dumps(found)


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
        self._asked = (url, key, body)
        self._came = SimpleQueue[str | Exception | None]()
        self._lock = Lock()
        self._closed = False
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
        text = "\n".join(data)
        data = []
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


# Where a server's API is, and which of its models is meant

HINT = "give it as http://host:port/v1, or http://host:port/v1#NAME for one of several models"


@dataclass(frozen=True, slots=True)
class Address:
    """The API's address without a slash at its end; `model` is None where the server chooses."""

    url: str
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.url}#{self.model}" if self.model else self.url


def is_address(name: str | None) -> bool:
    """Whether the name of a target is a server's address."""
    return bool(name and re.match(r"https?://", name, re.IGNORECASE))


def parse_address(text: str) -> Address:
    """An address as it was typed; without a path it is that of /v1. UsageError for a wrong one.

    One with a user or a query is refused without being repeated: these may hold secrets.
    """
    wrong = UsageError(f"'{text:.100}' is no address of a server.", hint=HINT)
    base, _, model = text.partition("#")
    try:
        parts = urlsplit(base)
        named = parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        raise wrong from None
    # A model's name may be the path of its file, with spaces.
    if not named or re.search(r"\s", base) or re.search(r"[\x00-\x1f\x7f-\x9f]", text):
        raise wrong
    if parts.username is not None or parts.query:
        raise UsageError(
            "an address with a user or a query is not taken, because chats would keep it.",
            hint="a key goes into DFLASH_REMOTE_KEY or --remote-key-file FILE",
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return Address(f"{parts.scheme.lower()}://{parts.netloc}{path}", model or None)
