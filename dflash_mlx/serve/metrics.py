"""What `/metrics` shows, in the text format of Prometheus. Knows numbers only."""

import mlx.core as mx
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dflash_mlx.pair import Pair
from dflash_mlx.stats import Stats

from .admission import Admission

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)


class Metrics:
    """The counts of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "dflash_requests", "HTTP requests by path and status.", ["path", "status"],
            registry=registry,
        )  # fmt: skip
        self._prompt = Counter("dflash_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._cached = Counter(
            "dflash_cached_prompt_tokens", "Tokens of prompts not read again.", registry=registry
        )
        self._generated = Counter("dflash_generated_tokens", "Tokens made.", registry=registry)
        self._drafted = Counter("dflash_drafted_tokens", "Drafts verified.", registry=registry)
        self._accepted = Counter("dflash_accepted_tokens", "Drafts accepted.", registry=registry)
        self._lengths = Histogram(
            "dflash_acceptance_length", "Tokens committed a verify, bonus included.",
            buckets=LENGTHS, registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "dflash_time_to_first_token_seconds", "From a place in the engine to the first token.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._whole = Histogram(
            "dflash_answer_seconds", "From the line to the last token.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip

    def watch(self, pair: Pair, admission: Admission) -> None:
        """Show the numbers of an engine and its line, read when somebody asks."""
        engine = pair.engine
        for name, text, read in (
            ("running", "Answers being found.", lambda: admission.running),
            ("waiting", "Answers waiting for a place.", lambda: admission.waiting),
            ("reserved_bytes", "Memory set aside for running answers.", lambda: admission.used),
            ("room_bytes", "Memory that answers may take.", lambda: admission.room),
            ("active_memory_bytes", "Memory MLX uses.", mx.get_active_memory),
            ("peak_memory_bytes", "The most it has used.", mx.get_peak_memory),
            ("passes", "Target passes so far.", lambda: engine.passes),
            ("pass_rows", "Rows of all target passes so far.", lambda: engine.rows),
        ):
            Gauge(f"dflash_{name}", text, registry=self._registry).set_function(read)

    def request(self, path: str, status: int) -> None:
        """Count a request that was answered or refused."""
        self._requests.labels(path, str(status)).inc()

    def answered(self, stats: Stats, seconds: float) -> None:
        """Count an answer, also one that was broken off."""
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
        self._generated.inc(stats.generated)
        self._drafted.inc(stats.drafted)
        self._accepted.inc(stats.accepted)
        for length in stats.committed:
            self._lengths.observe(length)
        if stats.generated:
            self._first.observe(stats.prefill_seconds)
        self._whole.observe(seconds)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
