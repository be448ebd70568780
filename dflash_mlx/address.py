"""Addresses of servers, as they are given for a model."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from dflash_mlx.errors import UsageError

HINT = "give it as http://host:port/v1, or http://host:port/v1#NAME for one of several models"


@dataclass(frozen=True, slots=True)
class Address:
    """An API's address without a slash at the end. model: None if the address names none."""

    url: str
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.url}#{self.model}" if self.model else self.url


def is_address(name: str | None) -> bool:
    return bool(name and re.match(r"https?://", name, re.IGNORECASE))


def is_bare_address(name: str) -> bool:
    """Whether a target is given as host:port, without http://."""
    return re.fullmatch(r"[\w.-]+:\d{4,5}(/.*)?", name) is not None


def parse_address(text: str) -> Address:
    """Parse an address as typed; the default path is /v1. Raises UsageError for an invalid one.

    The error for an address with a user or a query does not repeat it: these may be secrets.
    """
    invalid = UsageError(f"'{text:.100}' is not a server's address.", hint=HINT)
    base, _, model = text.partition("#")
    try:
        parts = urlsplit(base)
        has_host = parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        raise invalid from None
    # The model's name may be a path, with spaces.
    if not has_host or re.search(r"\s", base) or re.search(r"[\x00-\x1f\x7f-\x9f]", text):
        raise invalid
    if parts.username is not None or parts.query:
        raise UsageError(
            "an address with a user name or a query is refused, because saved chats would contain "
            "it.",
            hint="a key goes into DFLASH_REMOTE_KEY or --remote-key-file FILE",
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return Address(f"{parts.scheme.lower()}://{parts.netloc}{path}", model or None)
