"""What `/stats` shows: the last answer, where drafts were kept, time, conversation, snapshots."""

from ..kernel_notes import kernels_line
from ..output import Output, columns, size
from .dialogue import Dialogue

BAR = 8  # cells for 100 %
EIGHTHS = " ▏▎▍▌▋▊▉█"


def stats_page(dialogue: Dialogue, out: Output) -> list[str]:
    """The lines of `/stats`."""
    import mlx.core as mx

    from dflash_mlx.hub.registry import SNAPSHOT_BYTES, SNAPSHOTS

    lines = []
    if dialogue.last is not None:
        stats = dialogue.last.stats
        drafts = (
            f" · {stats.verifies:,} verifies · {stats.accepted:,} of {stats.drafted:,} drafts "
            f"accepted ({stats.acceptance_rate:.1%}) · τ {stats.acceptance_length:.2f}"
            if stats.verifies
            else " · no drafts"
        )
        lines.append(field("last answer", f"{stats.generated:,} tokens{drafts}"))
        for number, row in enumerate(
            position_rows(stats.accepted_by_position, stats.verifies, out)
        ):
            lines.append(field("" if number else "by position", row))
        lines += policy_lines(dialogue)
        rate = f" · {stats.tokens_per_second:.1f} tok/s" if stats.tokens_per_second else ""
        new = stats.prompt_tokens - stats.cached_tokens
        lines.append(
            field(
                "time",
                f"prefill {stats.prefill_seconds:.2f} s · first token "
                f"{dialogue.last.first_token_seconds:.2f} s · decode {stats.decode_seconds:.2f} s"
                f"{rate}",
            )
        )
        lines.append(field("prompt", f"{new:,} new + {stats.cached_tokens:,} cached tokens"))
    totals = dialogue.totals
    used = len(dialogue.session.context.tokens)
    tau = f" · τ {totals.acceptance_length:.2f}" if totals.verifies else ""
    answers = f"{totals.answers:,} answer{'' if totals.answers == 1 else 's'}"
    lines.append(
        field(
            "conversation",
            f"{answers} · {totals.tokens:,} tokens{tau} · context {used:,} / "
            f"{dialogue.context_length:,} · peak {size(mx.get_peak_memory())}",
        )
    )
    if line := kernels_line(dialogue.pair.target.kernels):
        lines.append(field("kernels", line))
    cache = dialogue.session.context.target_cache
    if cache.needs_snapshots:
        count = f"{cache.snapshots} place{'' if cache.snapshots == 1 else 's'} to go back to"
        limit = f"at most {SNAPSHOTS}, or {size(SNAPSHOT_BYTES)}"
        lines.append(field("snapshots", f"{count} · {size(cache.snapshot_bytes)} · {limit}"))
    return lines


def policy_lines(dialogue: Dialogue) -> list[str]:
    """What the mode auto chose since it began, and why it chose what it did last."""
    policy = dialogue.session.policy
    if dialogue.mode != "auto" or policy is None:
        return []
    from dflash_mlx.policy.costs import words

    chosen = ", ".join(f"{count:,} × {words(plan)}" for plan, count in policy.plans[:4])
    return [field("chosen", chosen), field("why", policy.reason)]


def field(name: str, text: str) -> str:
    """A name and what belongs to it."""
    return f"  {name:14}{text}"


def position_rows(accepted: list[int], verifies: int, out: Output) -> list[str]:
    """How often the draft in each slot was kept, as bars in columns of equal length."""
    if not verifies or not accepted:
        return []
    cells = [
        f"{slot:2} {bar(count / verifies, out):{BAR}} {count / verifies:4.0%}"
        for slot, count in enumerate(accepted, 1)
    ]
    across = max(1, min(4, ((columns() or 80) - 16) // (BAR + 11)))
    height = -(-len(cells) // across)
    return ["   ".join(cells[row::height]) for row in range(height)]


def bar(share: float, out: Output) -> str:
    """A share of BAR cells, in eighths of a cell where the terminal can."""
    if out.ascii:
        return "#" * round(share * BAR)
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
