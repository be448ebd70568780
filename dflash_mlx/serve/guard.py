"""Checks host, origin, key and body of each request before an endpoint sees it."""

import asyncio
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access_log import for_log
from .protocol import OLLAMA, Problem, Settings, send_problem
from .web_page import PATHS

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/health", *PATHS)
FORM = "application/x-www-form-urlencoded"


class Guard:
    """Checks host, origin, API key, and the body's type and size; refuses other requests."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            body = await self._body(headers, receive)
        except Problem as problem:
            await send_problem(for_log(problem, scope), scope, receive, send)
            return
        except ConnectionError:  # the client has disconnected
            return
        await self._app(scope, replay(body, receive), send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings = self._settings
        host = headers.get("host", "")
        if settings.hosts and host_name(host) not in settings.hosts:
            raise Problem(
                403,
                f"the host '{host:.100}' is not one of this server's (--allow-host adds one).",
            )
        origin = headers.get("origin")
        same_origin = {f"http://{host}", f"https://{host}"}
        if origin is not None and origin not in same_origin and not self._allows(origin):
            raise Problem(
                403, f"pages of '{origin:.100}' may not use this server (--cors allows them)."
            )
        if scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS:
            return
        if settings.api_key is not None and not self._has_key(headers):
            raise Problem(401, "the API key is missing or wrong.", code="invalid_api_key")
        if (coding := headers.get("content-encoding", "identity")) != "identity":
            raise Problem(415, f"the body cannot be read with the Content-Encoding {coding:.20}.")
        if scope["method"] == "POST" and not has_json(scope["path"], headers):
            raise Problem(415, "the body must be JSON, with the Content-Type application/json.")

    def _allows(self, origin: str) -> bool:
        return "*" in self._settings.origins or origin in self._settings.origins

    def _has_key(self, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        # Starlette decodes headers as Latin-1.
        return hmac.compare_digest(key.encode("latin-1"), (self._settings.api_key or "").encode())

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Raises Problem 413 for a body that is too large, 408 for one that is too slow."""
        limits = self._settings.limits
        too_large = Problem(413, f"the body is larger than {limits.body_bytes >> 20} MiB.")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > 18 or int(size) > limits.body_bytes:
            raise too_large

        async def read() -> bytes:
            body = bytearray()
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                body += message.get("body", b"")
                if len(body) > limits.body_bytes:
                    raise too_large
                if not message.get("more_body"):
                    return bytes(body)

        try:
            return await asyncio.wait_for(read(), limits.body_seconds)
        except TimeoutError:
            raise Problem(
                408, f"the body did not come within {limits.body_seconds:g} seconds."
            ) from None


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was read already, and then what follows it."""
    is_replayed = False

    async def replayed() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def host_name(host: str) -> str:
    """A Host header without its port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.lower().rstrip(".")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def has_json(path: str, headers: Headers) -> bool:
    """Whether a body is JSON, by its Content-Type.

    Ollama's programs may name none, or curl's own. Browsers, whose forms send such bodies to other
    sites, say by a header who asks.
    """
    kind = headers.get("content-type", "")
    from_browser = "origin" in headers or "sec-fetch-site" in headers
    if path.startswith(OLLAMA) and not from_browser:
        return kind in ("", FORM) or is_json(kind)
    return is_json(kind)


def is_json(kind: str) -> bool:
    name = kind.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")
