"""Where a server's API is, and which of its models is meant: http://host:port/v1#NAME."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from dflash_mlx.errors import UsageError

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
