"""Counts and times of an answer that a server gave, as far as it tells them."""

import time
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from dflash_mlx.stats import Stats

COUNTS = frozenset({"generated", "prompt_tokens", "cached_tokens", "drafted", "accepted"})


@dataclass(slots=True)
class RemoteStats(Stats):
    """As `Stats`; what stands in `unknown` the server has not told, and its field says nothing.

    Times are the server's own where it tells them, else those seen here, the network's included.
    """

    unknown: frozenset[str] = COUNTS
    told: dict[str, Any] = field(default_factory=dict)

    def arrived(self) -> None:
        """Some of the answer has come."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            self.prefill_seconds = now - self._began
        self.decode_seconds = now - self._first

    def take(self, chunk: dict[str, Any]) -> None:
        """Take what a chunk tells: OpenAI's usage, llama-server's timings, what `dflash` adds."""
        usage, timings = of(chunk, "usage"), of(chunk, "timings")
        self._count("prompt_tokens", usage.get("prompt_tokens"))
        self._count("generated", usage.get("completion_tokens"))
        details = of(usage, "prompt_tokens_details")
        self._count("cached_tokens", timings.get("cache_n", details.get("cached_tokens")))
        self._count("drafted", timings.get("draft_n"))
        self._count("accepted", timings.get("draft_n_accepted"))
        for name, key in (("prefill_seconds", "prompt_ms"), ("decode_seconds", "predicted_ms")):
            if is_number(timings.get(key)):
                setattr(self, name, timings[key] / 1e3)
        if "predicted_per_second" in timings:
            self.told["rate"] = timings["predicted_per_second"]
        self.told |= of(chunk, "dflash")
        if isinstance(self.told.get("seed"), int):
            self.seed = self.told["seed"]

    def _count(self, name: str, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(self, name, value)
            self.unknown -= {name}

    @property
    def verifies(self) -> int:
        """As the server tells; 0 where it does not."""
        return int(self._told("verifies") or 0)

    @property
    def acceptance_length(self) -> float:
        """Likewise, 1.0."""
        return self._told("acceptance_length") or 1.0

    @property
    def tokens_per_second(self) -> float:
        """The server's own rate, else that of the tokens it counted over the seconds seen here."""
        if told := self._told("rate"):
            return told
        if self.generated < 2 or not self.decode_seconds:
            return 0.0
        return (self.generated - 1) / self.decode_seconds

    def _told(self, name: str) -> float | None:
        value = self.told.get(name)
        return float(value) if is_number(value) else None


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; an empty one where it is not."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a server's JSON is a number that can be shown."""
    return isinstance(value, int | float) and not isinstance(value, bool)
