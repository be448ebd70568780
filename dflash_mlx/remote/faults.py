"""What goes wrong between a client and a server, each as one sentence.

Imports what speaks HTTP only where something has gone wrong: commands start without it.
"""

import json
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import DFlashError, ServerLost, first_line

if TYPE_CHECKING:
    from http.client import HTTPResponse

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
