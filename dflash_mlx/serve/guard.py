"""Checks host, origin and key of each request before an endpoint sees it."""

import hmac
import ipaddress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from .access_log import for_log
from .protocol import OLLAMA, Problem, Settings, as_problem, problem_reply
from .web_page import PATHS

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/health", *PATHS)
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks host, origin, API key, and the body's type; refuses other requests.

    All errors of endpoints become responses here, in the form of the API at their path.
    """

    app: ASGIApp
    settings: Settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope, Headers(scope=scope))
            await self.app(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:
            problem = for_log(as_problem(error), scope)
            await problem_reply(problem, scope["path"])(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings = self.settings
        host = headers.get("host", "")
        if settings.hosts and host_name(host) not in settings.hosts:
            message = f"the host '{host:.100}' is not one of this server's (--allow-host adds one)."
            raise Problem(403, message)
        origin = headers.get("origin")
        allowed = {f"http://{host}", f"https://{host}", *settings.origins}
        if origin is not None and "*" not in allowed and origin not in allowed:
            message = f"pages of '{origin:.100}' may not use this server (--cors allows them)."
            raise Problem(403, message)
        if scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS:
            return
        if settings.api_key is not None and not self._has_key(headers):
            raise Problem(401, "the API key is missing or wrong.", code="invalid_api_key")
        if (coding := headers.get("content-encoding", "identity")) != "identity":
            raise Problem(415, f"the body cannot be read with the Content-Encoding {coding:.20}.")
        if scope["method"] == "POST" and not has_json(scope["path"], headers):
            raise Problem(415, "the body must be JSON, with the Content-Type application/json.")

    def _has_key(self, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        # Starlette decodes headers as Latin-1.
        return hmac.compare_digest(key.encode("latin-1"), (self.settings.api_key or "").encode())


def host_name(host: str) -> str:
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
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return True
    from_browser = "origin" in headers or "sec-fetch-site" in headers
    return path.startswith(OLLAMA) and not from_browser and kind in ("", FORM)
