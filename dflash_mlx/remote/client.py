"""HTTP requests to a server, and the events of a streamed answer.

Redirects are not followed, and no proxy is used, so the key is only sent to the given address.
"""

import asyncio
import json
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from typing import Any

import httpx2

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError, ServerLost, UsageError, first_line
from dflash_mlx.text import whole_text

# Errors between client and server

NO_ENDPOINT = "give the address of an OpenAI-compatible API, which mostly ends with /v1"
KEY_HINT = (
    "put the server's key into DFLASH_REMOTE_KEY, or its file's name behind --remote-key-file"
)


def connection_fault(error: BaseException, url: str) -> DFlashError:
    cause = cause_of(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = getattr(cause, "verify_message", "") or first_line(cause)
        return DFlashError(
            f"the certificate of {url} is not trusted ({reason}).",
            hint="SSL_CERT_FILE can name the file of an authority that you trust",
        )
    if isinstance(cause, ssl.SSLError):
        return DFlashError(
            f"{url} does not speak TLS ({first_line(cause)}).", hint="try http:// in its place"
        )
    if isinstance(cause, socket.gaierror):
        return DFlashError(f"the machine of {url} is not known.", hint="check its name")
    if isinstance(error, httpx2.TimeoutException) or isinstance(cause, TimeoutError):
        return DFlashError(
            f"{url} does not answer.", hint="check the address, and that the machine is awake"
        )
    if isinstance(error, httpx2.RemoteProtocolError):
        if "disconnected" in str(error):
            return DFlashError(
                f"{url} closed the connection without an answer.",
                hint="check the port; its log may say why; then ask again",
            )
        return DFlashError(
            f"the server at {url} does not speak HTTP ({first_line(error)}).",
            hint="check the port, and whether it is https://",
        )
    number = cause.errno if isinstance(cause, OSError) else None
    reason = os.strerror(number) if number else first_line(cause)
    return DFlashError(
        f"{url} cannot be reached ({reason}).",
        hint="check address and port, and that the server runs: `dflash serve` on that machine",
    )


def cause_of(error: BaseException) -> BaseException:
    """The last error of the operating system that led to this one; without any, this one.

    Of several at once (a name with two addresses) the last one counts.
    """
    found = error
    while earlier := error.__cause__ or error.__context__:
        error = earlier.exceptions[-1] if isinstance(earlier, BaseExceptionGroup) else earlier
        if isinstance(error, OSError):
            found = error
    return found


def broken_off(url: str, why: str) -> ServerLost:
    return ServerLost(
        f"the answer of {url} broke off ({why}).", hint="the text so far is kept; ask again"
    )


def status_fault(
    status: int, headers: httpx2.Headers, body: bytes, url: str, key: str | None
) -> DFlashError:
    """The error for a status that is not 200, with the message in the body."""
    message = body_message(body, key)
    details = f" ({status}: {message})" if message else f" ({status})"
    if status in (401, 403):  # without the message, in which servers repeat the key
        fault = f"refuses the key ({status})" if key else f"wants a key ({status})"
        return DFlashError(f"{url} {fault}.", hint=KEY_HINT)
    if 300 <= status < 400:
        location = headers.get("Location", "another place")[:200]
        return DFlashError(f"{url} redirects to {location} ({status}).", hint="give that address")
    if status == 404 and "model" in message.lower():
        return DFlashError(
            f"{url} does not have this model{details}.", hint="name one of its models behind a #"
        )
    if status in (404, 405):
        return DFlashError(f"{url} is not an OpenAI-compatible API{details}.", hint=NO_ENDPOINT)
    if status == 429:
        seconds = headers.get("Retry-After", "")
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

TIMEOUT = 10.0  # seconds to connect, and for each part of the response to a GET
POLL_SECONDS = 0.1  # between two calls of `waiting`
MAX_ERROR = 100_000  # bytes of the body of an error
# TCP keepalive detects a lost machine after 35 seconds; the names that this system has.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in KEEPALIVE.items()
        if hasattr(socket, name)
    ),
]
DONE = "[DONE]"


def read_json(url: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    """The JSON of a GET, or with a body of a POST. Raises DFlashError if there is none."""
    try:
        return json.loads(b"".join(response_parts(url, key, body)))
    except (ValueError, RecursionError):
        raise DFlashError(
            f"{api_of(url)} is not an OpenAI-compatible API.", hint=NO_ENDPOINT
        ) from None


def stream_events(
    url: str, key: str | None, body: dict[str, Any], waiting: Callable[[], None]
) -> Generator[dict[str, Any]]:
    """The JSON objects in the response to a POST, until [DONE] or the end.

    waiting: called while none comes, and may raise. Closing the iterator closes the connection,
    so that the server stops its answer. Raises DFlashError for a refused request, ServerLost for
    an answer that breaks off, and for any other event.
    """
    data: list[str] = []
    with closing(response_parts(url, key, body, waiting)) as parts:
        for line in lines_of(parts):
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
                yield event_object(text, api_of(url))


def lines_of(parts: Generator[bytes]) -> Generator[str]:
    """The lines of an event stream, and an empty one at its end.

    httpx2's own also end at characters that JSON may contain.
    """
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
    yield rest.decode("utf-8", "replace").rstrip("\r")
    yield ""


def event_object(text: str, url: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise broken_off(url, "an event of it is no JSON")
    return event


def response_parts(
    url: str,
    key: str | None,
    body: dict[str, Any] | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Generator[bytes]:
    """The parts of a response as they come, in an event loop that is left whenever none does."""
    parts = receive(url, key, body)
    loop = asyncio.new_event_loop()

    async def next_part() -> bytes | None:
        return await anext(parts, None)

    step = None
    try:
        while True:
            step = loop.create_task(next_part())
            while not step.done():
                loop.run_until_complete(asyncio.wait([step], timeout=POLL_SECONDS))
                if not step.done():
                    waiting()
            part = step.result()
            if part is None:
                return
            yield part
    finally:
        if step is not None:
            step.cancel()
            loop.run_until_complete(asyncio.gather(step, return_exceptions=True))
        loop.run_until_complete(parts.aclose())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def receive(url: str, key: str | None, body: dict[str, Any] | None) -> AsyncGenerator[bytes]:
    """Send a GET, or with a body a POST of JSON; the parts of the response.

    A POST has no timeout once it is connected.
    """
    streams = body is not None and body.get("stream")
    headers = {
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": f"dflash/{__version__}",
    }
    if key is not None:
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise UsageError(
                "the key contains characters that no key can have.", hint="check its file"
            )
        headers["Authorization"] = f"Bearer {key}"
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = whole_text(json.dumps(body, ensure_ascii=False)).encode()
    timeout = httpx2.Timeout(TIMEOUT if body is None else None, connect=TIMEOUT)
    answers = False
    connections = []

    async def note(event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            connections.append(info["return_value"])

    request = {"headers": headers, "content": data, "extensions": {"trace": note}}
    try:
        async with (
            httpx2.AsyncClient(
                transport=transport_to(url), timeout=timeout, trust_env=False
            ) as client,
            client.stream("GET" if data is None else "POST", url, **request) as reply,
        ):
            if reply.status_code != 200:
                raise status_fault(
                    reply.status_code, reply.headers, await error_body(reply), api_of(url), key
                )
            if streams and "event-stream" not in reply.headers.get("Content-Type", ""):
                raise DFlashError(
                    f"{api_of(url)} does not stream its answer.",
                    hint="it has to know stream: true",
                )
            answers = streams
            async for part in reply.aiter_bytes():
                yield part
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        if not answers:
            raise connection_fault(error, api_of(url)) from None
        if not isinstance(error, httpx2.RemoteProtocolError):  # else it ended, maybe early
            raise broken_off(api_of(url), type(cause_of(error)).__name__) from None
    finally:
        for connection in connections:  # httpx2 leaves one open that is not ready yet
            await connection.aclose()


def transport_to(url: str) -> httpx2.AsyncHTTPTransport:
    """A transport without the proxies of the environment; it trusts the system's authorities."""
    is_https = url.startswith("https:")
    context = ssl.create_default_context() if is_https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncHTTPTransport(verify=context, trust_env=False, socket_options=SOCKET_OPTIONS)


async def error_body(reply: httpx2.Response) -> bytes:
    body = b""
    async for part in reply.aiter_bytes():
        body += part
        if len(body) >= MAX_ERROR:
            break
    return body


def api_of(url: str) -> str:
    for endpoint in ("/models", "/models/unload", "/chat/completions"):
        url = url.removesuffix(endpoint)
    return url
