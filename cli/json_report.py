"""Builds the object that `--json` prints: raw counts and seconds."""

from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dflash_mlx import __version__
from dflash_mlx.remote.session import RemoteSession, Server

from .answer import Answer
from .kernel_notes import kernels_json

if TYPE_CHECKING:
    from dflash_mlx import Pair, Session, Stats


def answer_report(
    answer: Answer, session: "Session | RemoteSession", options: dict[str, Any], load_seconds: float
) -> dict[str, Any]:
    """One answer with all its numbers; options are those of `Session.stream`."""
    if isinstance(session, RemoteSession):
        return remote_report(answer, session, options, load_seconds)
    import mlx.core as mx

    return {
        **answer_json(answer),
        **pair_report(session.pair),
        "mode": session.mode,
        "sampling": sampling_json(options),
        "speculation": speculation_json(answer.stats, session, options),
        "timing": {"load_s": round(load_seconds, 4), **timing_json(answer)},
        "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 4),
        "versions": {"dflash": __version__, "mlx": version("mlx"), "mlx_lm": version("mlx-lm")},
    }


def remote_report(
    answer: Answer, session: RemoteSession, options: dict[str, Any], load_seconds: float
) -> dict[str, Any]:
    """The same of a server's answer; None is what the server does not tell."""
    stats = answer.stats
    known = {
        name: None if name in stats.unknown else getattr(stats, name)
        for name in ("prompt_tokens", "cached_tokens", "generated", "drafted", "accepted")
    }
    usage = {"prompt": known["prompt_tokens"], "cached": known["cached_tokens"]}
    speculation = {
        "verifies": stats.verifies or None,
        "drafted": known["drafted"],
        "accepted": known["accepted"],
        "mean_acceptance_length": stats.acceptance_length if stats.verifies else None,
        "acceptance_rate": round(stats.acceptance_rate, 4) if known["drafted"] else None,
    }
    return {
        **answer_json(answer),
        **pair_report(session.server),
        "usage": {**usage, "generated": known["generated"]},
        "tokens": None,
        "mode": session.mode,
        "sampling": sampling_json(options),
        "speculation": speculation,
        "timing": {"load_s": round(load_seconds, 4), **timing_json(answer)},
        "versions": {"dflash": __version__},
    }


def pair_report(pair: "Pair | Server") -> dict[str, Any]:
    """A pair, and which kernels it runs; or a server's model."""
    if isinstance(pair, Server):
        return {"model": pair.target_name, "draft": pair.draft_name, "server": pair.kind or None}
    from dflash_mlx.drafter.quantise import bits_of

    return {
        "model": pair.target_name,
        "draft": pair.draft_name,
        "lookup": pair.lookup,
        "draft_bits": None if pair.drafter is None else bits_of(pair.drafter.model),
        "exact": pair.target.kernels.exact,
        "kernels": kernels_json(pair.target.kernels),
    }


def sampling_json(options: dict[str, Any]) -> dict[str, Any]:
    """How tokens were chosen and when the answer would have ended; the seed stands by itself."""
    settings = asdict(options["sampling"])
    del settings["seed"], settings["logit_bias"]
    return {
        **settings,
        **({"accept": options["accept"]} if "accept" in options else {}),
        "max_tokens": options["max_tokens"],
        "stop": list(options["stop"]),
    }


def answer_json(answer: Answer) -> dict[str, Any]:
    """The text, tokens and token counts of an answer; the seed is None where nothing is drawn."""
    stats = answer.stats
    return {
        "text": answer.text,
        "reasoning": answer.thinking,
        "finish_reason": answer.finish_reason,
        "tokens": answer.tokens,
        "usage": {
            "prompt": stats.prompt_tokens,
            "cached": stats.cached_tokens,
            "generated": stats.generated,
        },
        "seed": stats.seed,
    }


def speculation_json(
    stats: "Stats", session: "Session", options: dict[str, Any]
) -> dict[str, Any] | None:
    """Draft counts and acceptance; None without a drafter."""
    pair, mode = session.pair, session.mode
    if not pair.drafts or mode == "baseline":
        return None
    from dflash_mlx.request import TREE_BUDGET

    mode_fields: dict[str, Any] = {}
    if mode == "ddtree":
        mode_fields["tree_budget"] = options["tree_budget"] or TREE_BUDGET
    elif mode == "auto" and (policy := session.policy):
        mode_fields["chosen"] = [
            {"rows": plan.rows, "tree": plan.tree, "rounds": count} for plan, count in policy.plans
        ]
        mode_fields["why"] = policy.reason
    return {
        "block_size": options["block_size"] or pair.block_size,
        **mode_fields,
        "verifies": stats.verifies,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "mean_acceptance_length": round(stats.acceptance_length, 4),
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "accepted_by_position": stats.accepted_by_position,
    }


def timing_json(answer: Answer) -> dict[str, float]:
    """Times in seconds, and the decode rate after the first token."""
    stats = answer.stats
    return {
        "prefill_s": round(stats.prefill_seconds, 4),
        "first_token_s": round(answer.first_token_seconds, 4),
        "decode_s": round(stats.decode_seconds, 4),
        "tok_s": round(stats.tokens_per_second, 2),
    }
