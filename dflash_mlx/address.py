"""Addresses of servers and of the Hub, as they are given for a model."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dflash_mlx.errors import UsageError

HINT = "give it as http://host:port/v1, or http://host:port/v1#NAME for one of several models"
HUBS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
# Of an address of the Hub: what stands before a revision, and first parts that are no owner's name.
REVISIONS = ("tree", "blob", "resolve", "raw", "commit")
NO_OWNERS = frozenset("api blog collections datasets docs models papers spaces v1".split())


@dataclass(frozen=True, slots=True)
class Address:
    """An API's address without a slash at the end. model: None if the address names none."""

    url: str
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.url}#{self.model}" if self.model else self.url


def is_address(name: str | None) -> bool:
    """Whether a target is a server's address. An address of the Hub is none."""
    return bool(name and re.match(r"\s*https?://", name, re.IGNORECASE) and not on_hub(name))


def on_hub(name: str) -> bool:
    """Whether a name is an address of the Hub, with https:// or without."""
    text = name.strip() if "://" in name else f"https://{name.strip()}"
    endpoint = os.environ.get("HF_ENDPOINT") or ""
    try:
        parts, mirror = urlsplit(text), urlsplit(endpoint)
    except ValueError:
        return False
    return parts.hostname in HUBS or bool(mirror.netloc and parts.netloc == mirror.netloc)


def model_name(name: str) -> str:
    """A model's name as it was given, without blanks around it; an address of the Hub as the id.

    Raises UsageError for an address of the Hub that names no model, or another revision than main.
    """
    if Path(name).exists() or not on_hub(name):
        return name if Path(name).exists() else name.strip()
    address, _, head = name.strip().partition("#")
    path = re.sub(r"^\w+://|\?.*", "", address)
    owner, model, *rest = [*filter(None, path.split("/")[1:]), "", ""]
    if not owner or not model or owner in NO_OWNERS:
        raise UsageError(
            f"'{path}' is an address of the Hub, and names no model.",
            hint="give owner/model, or https://huggingface.co/owner/model",
        )
    if rest[0] in REVISIONS and rest[1] != "main":
        raise UsageError(
            f"'{path}' names a revision, and only main is loaded.",
            hint=f"give {owner}/{model}, or a folder with the other revision",
        )
    return f"{owner}/{model}#{head}" if head == "mtp" else f"{owner}/{model}"


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
    if on_hub(base):
        raise UsageError("the Hub is no server of models that answer.", hint=HINT)
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
