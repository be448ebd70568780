"""Who may come in, and how much they may bring: an ASGI layer in front of all endpoints.

A page in a browser cannot reach the server unasked: the Host must be one of ours (DNS rebinding),
an Origin must be allowed, and bodies must be JSON, which a page may not send without asking first.
Keys are compared in constant time. Knows no models.
"""

import asyncio
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problem import Problem
from .replies import send_problem
from .settings import Settings

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/health",)


class Guard:
    """Lets requests through that may come in, and answers the others."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request's head, read its body within the limits, and hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            body = await self._body(headers, receive)
        except Problem as problem:
            await send_problem(problem, scope, receive, send)
            return
        except ConnectionError:  # nobody is left to answer
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
        own = {f"http://{host}", f"https://{host}"}
        if origin is not None and origin not in own and not self._allows(origin):
            raise Problem(
                403, f"pages of '{origin:.100}' may not use this server (--cors allows them)."
            )
        if scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS:
            return
        if settings.api_key is not None and not self._has_key(headers):
            raise Problem(401, "the API key is missing or wrong.", code="invalid_api_key")
        if scope["method"] == "POST" and not is_json(headers.get("content-type", "")):
            raise Problem(415, "the body must be JSON, with the Content-Type application/json.")

    def _allows(self, origin: str) -> bool:
        return "*" in self._settings.origins or origin in self._settings.origins

    def _has_key(self, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        # Starlette reads bytes of headers as Latin-1.
        return hmac.compare_digest(given.encode("latin-1"), (self._settings.api_key or "").encode())

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body. Problem 413 for one that is too large, 408 for one that is too slow."""
        limits = self._settings.limits
        too_large = Problem(413, f"the body is larger than {limits.body_bytes >> 20} MiB.")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > 18 or int(size) > limits.body_bytes:
            raise too_large

        async def read() -> bytes:
            found = bytearray()
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                found += message.get("body", b"")
                if len(found) > limits.body_bytes:
                    raise too_large
                if not message.get("more_body"):
                    return bytes(found)

        try:
            return await asyncio.wait_for(read(), limits.body_seconds)
        except TimeoutError:
            raise Problem(
                408, f"the body did not come within {limits.body_seconds:g} seconds."
            ) from None


def replay(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read already, then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_json(kind: str) -> bool:
    """Whether a Content-Type is JSON's."""
    name = kind.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")
