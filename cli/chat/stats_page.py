"""The lines of `/stats`: the last answer, the conversation, and what the mode auto chose."""

from ..kernel_notes import kernels_line
from ..terminal.bars import position_rows
from ..terminal.output import Output, format_bytes, format_count
from .dialogue import Dialogue


def stats_page(dialogue: Dialogue, out: Output) -> list[str]:
    """The lines of `/stats`."""
    import mlx.core as mx

    from dflash_mlx.hub.registry import SNAPSHOT_BYTES, SNAPSHOTS

    lines = []
    if dialogue.last is not None:
        stats = dialogue.last.stats
        drafts = (
            f" · {format_count(stats.verifies, 'verify', 'verifies')} · {stats.accepted:,} of "
            f"{stats.drafted:,} drafts accepted ({stats.acceptance_rate:.1%}) · "
            f"τ {stats.acceptance_length:.2f}"
            if stats.verifies
            else " · no drafts"
        )
        lines.append(labelled_line("last answer", f"{stats.generated:,} tokens{drafts}"))
        for number, row in enumerate(
            position_rows(stats.accepted_by_position, stats.verifies, out)
        ):
            lines.append(labelled_line("" if number else "by position", row))
        rate = f" · {stats.tokens_per_second:.1f} tok/s" if stats.tokens_per_second else ""
        new = stats.prompt_tokens - stats.cached_tokens
        lines.append(
            labelled_line(
                "time",
                f"prefill {stats.prefill_seconds:.2f} s · first token "
                f"{dialogue.last.first_token_seconds:.2f} s · decode {stats.decode_seconds:.2f} s"
                f"{rate}",
            )
        )
        lines.append(
            labelled_line("prompt", f"{new:,} new + {stats.cached_tokens:,} cached tokens")
        )
        if stats.seed is not None:
            lines.append(labelled_line("seed", str(stats.seed)))
    totals = dialogue.totals
    used = len(dialogue.session.sequence.tokens)
    tau = f" · τ {totals.acceptance_length:.2f}" if totals.verifies else ""
    answers = format_count(totals.answers, "answer", "answers")
    lines.append(
        labelled_line(
            "conversation",
            f"{answers} · {totals.tokens:,} tokens{tau} · context {used:,} / "
            f"{dialogue.context_length:,} · peak {format_bytes(mx.get_peak_memory())}",
        )
    )
    lines += policy_lines(dialogue)
    if line := kernels_line(dialogue.pair.target.kernels):
        lines.append(labelled_line("kernels", line))
    cache = dialogue.session.sequence.target_cache
    if cache.needs_snapshots:
        places = format_count(cache.snapshots, "place", "places") + " to go back to"
        limit = f"at most {SNAPSHOTS}, or {format_bytes(SNAPSHOT_BYTES)}"
        lines.append(
            labelled_line("snapshots", f"{places} · {format_bytes(cache.snapshot_bytes)} · {limit}")
        )
    return lines


def policy_lines(dialogue: Dialogue) -> list[str]:
    """The plans that the mode auto chose for this pair so far, and why it chose the last one."""
    policy = dialogue.session.policy
    if dialogue.mode != "auto" or policy is None:
        return []
    from dflash_mlx.policy.costs import words

    chosen = ", ".join(f"{count:,} × {words(plan)}" for plan, count in policy.plans[:4])
    return [labelled_line("chosen", chosen), labelled_line("why", policy.reason)]


def labelled_line(name: str, text: str) -> str:
    """A label and its text."""
    return f"  {name:14}{text}"
