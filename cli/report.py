"""The object that `--json` prints. Counts and seconds as they are; nothing rounded away."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dflash_mlx import __version__

from .answer import Answer
from .kernel_notes import kernels_part

if TYPE_CHECKING:
    from dflash_mlx import Session, Stats


def report(
    said: Answer, session: "Session", options: dict[str, Any], load_seconds: float
) -> dict[str, Any]:
    """One answer with everything that is known about it; options are those of `Session.stream`."""
    import mlx.core as mx

    pair = session.pair
    return {
        **answer_part(said),
        "model": pair.target_name,
        "draft": pair.draft_name,
        "mode": session.mode,
        "exact": pair.target.kernels.exact,
        "speculation": speculation(said.stats, session, options),
        "kernels": kernels_part(pair.target.kernels),
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


def speculation(
    stats: "Stats", session: "Session", options: dict[str, Any]
) -> dict[str, Any] | None:
    """What the drafts brought; None without a drafter."""
    drafter, mode = session.pair.drafter, session.mode
    if drafter is None or mode == "baseline":
        return None
    from dflash_mlx.policy.plans import TREE_BUDGET

    more: dict[str, Any] = {}
    if mode == "ddtree":
        more["tree_budget"] = options["tree_budget"] or TREE_BUDGET
    elif mode == "auto" and (policy := session.policy):
        more["chosen"] = [
            {"rows": plan.rows, "tree": plan.tree, "rounds": count} for plan, count in policy.plans
        ]
        more["why"] = policy.reason
    return {
        "block_size": options["block_size"] or drafter.config.block_size,
        **more,
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
