"""The header of a chat: the pair, the machine, and the first commands to know."""

import os
from collections.abc import Sequence
from pathlib import Path

from dflash_mlx import __version__

from ..answer import Answer, counted, prompt_words
from ..backend import RemoteBackend, describe_server
from ..pair_notes import in_bits, kernels_line
from ..terminal.output import Output, format_bytes, format_count, stderr_columns
from ..terminal.render import position_rows, wrap_hanging
from .dialogue import Dialogue


def show_header(
    dialogue: Dialogue,
    load_seconds: float,
    *,
    preset: str | None = None,
    more: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> None:
    """Print the header with the preset in use and `more` lines; then what is wrong."""
    lines = header_lines(dialogue, load_seconds, preset)
    faults = [*faults, *dialogue.backend.warnings()]
    for line in [*lines, *more]:
        dialogue.out.note(wrap_hanging(line, stderr_columns()))
    for fault in faults:
        dialogue.out.note(wrap_hanging(fault, stderr_columns()), "warning")
    dialogue.out.note("")


def header_lines(dialogue: Dialogue, load_seconds: float, preset: str | None = None) -> list[str]:
    """The lines of the header."""
    backend = dialogue.backend
    if isinstance(backend, RemoteBackend):
        return server_lines(backend, load_seconds, preset)
    import mlx.core as mx

    pair = dialogue.pair
    drafting = dialogue.local.drafting_summary(dialogue.settings)
    device = "CPU" if mx.default_device() == mx.Device(mx.cpu) else "GPU"
    target = "bundled pair (tiny: sums, lists, everyday facts)"
    if pair.target_name != "bundled":
        target = (
            Path(pair.target_name).name if os.path.isdir(pair.target_name) else pair.target_name
        )
    name = "" if pair.draft_label == "bundled" else f" {pair.draft_label}"
    drafter = ""
    if not drafting:
        drafter = " · draft off"
    elif named := f"{name}{in_bits(pair)}":
        drafter = f" · drafter{named}"
    block = f" · {drafting}" if drafting else ""
    kernels = " · Metal kernels on" if pair.target.kernels.on else ""
    kernels += " · exact" if pair.target.kernels.exact else ""
    return [
        f"dflash {__version__} · {target}{drafter}{block} · {device}{kernels}"
        + (f" · preset {preset}" if preset else ""),
        f"loaded in {load_seconds:.1f} s · {format_bytes(mx.get_active_memory())} · "
        f"context {dialogue.context_length:,} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
    ]


def server_lines(backend: RemoteBackend, seconds: float, preset: str | None) -> list[str]:
    """The lines of the header where a server answers."""
    length = f"{backend.context_length:,}" if backend.context_length else "unknown"
    return [
        f"dflash {__version__} · {describe_server(backend.server)}"
        + (f" · preset {preset}" if preset else ""),
        f"asked in {seconds:.1f} s · context {length} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
    ]


# The lines of `/stats`


def stats_page(dialogue: Dialogue, out: Output) -> list[str]:
    """The lines of `/stats`."""
    lines = [] if dialogue.last is None else answer_lines(dialogue.last, out)
    totals = dialogue.totals
    tau = f" · τ {totals.acceptance_length:.2f}" if totals.verifies else ""
    answers = format_count(totals.answers, "answer", "answers")
    tokens = "tokens unknown" if totals.uncounted else f"{totals.tokens:,} tokens"
    conversation = f"{answers} · {tokens}{tau}"
    backend = dialogue.backend
    if isinstance(backend, RemoteBackend):
        lines.append(labelled_line("conversation", conversation))
        lines.append(labelled_line("server", describe_server(backend.server)))
        return lines
    return [*lines, *local_lines(dialogue, conversation)]


def answer_lines(answer: Answer, out: Output) -> list[str]:
    """The last answer in numbers."""
    lines, stats = [], answer.stats
    drafts = ""
    if stats.verifies:
        drafts += f" · {format_count(stats.verifies, 'verify', 'verifies')}"
    if stats.drafted:
        drafts += (
            f" · {stats.accepted:,} of {stats.drafted:,} drafts accepted "
            f"({stats.acceptance_rate:.1%})"
        )
    if stats.verifies:
        drafts += f" · τ {stats.acceptance_length:.2f}"
    if not drafts:
        drafts = " · drafts unknown" if "drafted" in stats.unknown else " · no drafts"
    lines.append(labelled_line("last answer", counted(stats, "generated") + drafts))
    for number, row in enumerate(position_rows(stats.accepted_by_position, stats.verifies, out)):
        lines.append(labelled_line("" if number else "by position", row))
    rate = f" · {stats.tokens_per_second:.1f} tok/s" if stats.tokens_per_second else ""
    lines.append(
        labelled_line(
            "time",
            f"prefill {stats.prefill_seconds:.2f} s · first token "
            f"{answer.first_token_seconds:.2f} s · decode {stats.decode_seconds:.2f} s{rate}",
        )
    )
    lines.append(labelled_line("prompt", prompt_words(stats) + " tokens"))
    if stats.seed is not None:
        lines.append(labelled_line("seed", str(stats.seed)))
    return lines


def local_lines(dialogue: Dialogue, conversation: str) -> list[str]:
    """What only a model on this machine has to tell."""
    import mlx.core as mx

    from dflash_mlx.hub.registry import SNAPSHOT_BYTES, SNAPSHOTS

    sequence = dialogue.local.session.sequence
    used = len(sequence.tokens)
    lines = [
        labelled_line(
            "conversation",
            f"{conversation} · context {used:,} / {dialogue.context_length:,} · "
            f"peak {format_bytes(mx.get_peak_memory())}",
        )
    ]
    lines += policy_lines(dialogue)
    if line := kernels_line(dialogue.pair.target.kernels):
        lines.append(labelled_line("kernels", line))
    cache = sequence.target_cache
    if cache.needs_snapshots:
        places = format_count(cache.snapshots, "place", "places") + " to go back to"
        limit = f"at most {SNAPSHOTS}, or {format_bytes(SNAPSHOT_BYTES)}"
        lines.append(
            labelled_line("snapshots", f"{places} · {format_bytes(cache.snapshot_bytes)} · {limit}")
        )
    return lines


def policy_lines(dialogue: Dialogue) -> list[str]:
    """The plans that the mode auto chose for this pair so far, and why it chose the last one."""
    policy = dialogue.local.session.policy
    if not dialogue.backend.drafting or dialogue.settings.mode != "auto" or policy is None:
        return []
    from dflash_mlx.policy.latency import describe_plan

    chosen = ", ".join(f"{count:,} × {describe_plan(plan)}" for plan, count in policy.plans[:4])
    return [labelled_line("chosen", chosen), labelled_line("why", policy.reason)]


def labelled_line(name: str, text: str) -> str:
    """A label and its text."""
    return f"  {name:14}{text}"
