"""The object that `--json` prints. Counts and seconds as they are; nothing rounded away."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dflash_mlx import __version__

from .answer import Answer

if TYPE_CHECKING:
    from dflash_mlx import Pair, Stats


def report(said: Answer, pair: "Pair", block_size: int | None, load_seconds: float) -> dict:
    """One answer with everything that is known about it; `block_size` None without a drafter."""
    import mlx.core as mx

    return {
        **answer_part(said),
        "model": pair.target_name,
        "draft": pair.draft_name,
        "speculation": None if block_size is None else speculation(said.stats, block_size),
        "timing": {"load_s": round(load_seconds, 4), **timing(said)},
        "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 4),
        "versions": {"dflash": __version__, "mlx": version("mlx"), "mlx_lm": version("mlx-lm")},
    }


def answer_part(said: Answer) -> dict[str, Any]:
    """What was said and how long it is."""
    stats = said.stats
    return {
        "text": said.text,
        "reasoning": said.thinking,
        "finish_reason": said.finish_reason,
        "tokens": said.tokens,
        "usage": {
            "prompt": stats.prompt_tokens,
            "cached": stats.cached_tokens,
            "generated": stats.generated,
        },
    }


def speculation(stats: "Stats", block_size: int) -> dict[str, Any]:
    """What the drafts brought."""
    return {
        "block_size": block_size,
        "verifies": stats.verifies,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "mean_acceptance_length": round(stats.acceptance_length, 4),
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "accepted_by_position": stats.accepted_by_position,
    }


def timing(said: Answer) -> dict[str, float]:
    """Seconds, and tokens a second after the first."""
    stats = said.stats
    return {
        "prefill_s": round(stats.prefill_seconds, 4),
        "first_token_s": round(said.first_token_seconds, 4),
        "decode_s": round(stats.decode_seconds, 4),
        "tok_s": round(stats.tokens_per_second, 2),
    }
