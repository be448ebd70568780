"""How a server answers, whom it lets in, and what it refuses as too much."""

from dataclasses import dataclass, field
from typing import Any

from dflash_mlx.request import Mode
from dflash_mlx.types import SamplingParams

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Above these a request is refused, or its connection closed.

    body_bytes: of a request. body_seconds: in which a body has to come. write_seconds: in which a
    client has to take what it is sent. choices: the most that `n` may ask for. queue: requests that
    may wait for a place; more get 429.
    """

    body_bytes: int = 16 * MIB
    body_seconds: float = 30.0
    write_seconds: float = 60.0
    choices: int = 16
    queue: int = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """One server's settings.

    names: what requests may call the model, the first is what answers call it. context: the most
    tokens of prompt and answer; None is the target's own. max_tokens: of an answer, where a request
    does not say. sampling, stop, options: what a request does not say; `options` are those of
    `Session.prepare`. keepalive: seconds without news after which a stream gets a sign of life.
    hosts: the names in a Host header that are let in; none given are all. origins: of pages.
    """

    names: tuple[str, ...]
    mode: Mode = "auto"
    max_sequences: int = 16
    context: int | None = None
    max_tokens: int = 4096
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    keepalive: float = 5.0
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
