"""Counts of an answer in the words of OpenAI and of llama-server."""

from collections.abc import Sequence
from typing import Any

from dflash_mlx.stats import Stats

from .job import Progress


def usage(stats: Sequence[Stats]) -> dict[str, Any]:
    """OpenAI's usage: the prompt counts once for all choices."""
    made = sum(one.generated for one in stats)
    read = stats[0].prompt_tokens
    return {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": stats[0].cached_tokens},
    }


def timings(stats: Stats) -> dict[str, Any]:
    """llama-server's timings of one choice; rates are tokens a second."""
    read = stats.prompt_tokens - stats.cached_tokens
    speed, prompt_seconds = stats.tokens_per_second, stats.prefill_seconds
    return {
        "cache_n": stats.cached_tokens,
        "prompt_n": read,
        "prompt_ms": round(1e3 * prompt_seconds, 3),
        "prompt_per_token_ms": round(1e3 * prompt_seconds / read, 3) if read else 0,
        "prompt_per_second": round(read / prompt_seconds, 3) if prompt_seconds else 0,
        "predicted_n": stats.generated,
        "predicted_ms": round(1e3 * stats.decode_seconds, 3),
        "predicted_per_token_ms": round(1e3 / speed, 3) if speed else 0,
        "predicted_per_second": round(speed, 3),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def progress(found: Progress) -> dict[str, Any]:
    """How far a prompt is read, as llama-server tells it."""
    return {
        "total": found.total,
        "cache": found.cached,
        "processed": found.read,
        "time_ms": round(found.ms),
    }
