"""The header of a chat: the pair, the machine, and the first commands to know."""

from collections.abc import Sequence

from dflash_mlx import __version__

from ..answer import Answer, counted, prompt_words
from ..terminal.output import Output, format_count, stderr_columns
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
    named_preset = f" · preset {preset}" if preset else ""
    return [
        f"dflash {__version__} · {backend.headline(dialogue.settings)}{named_preset}",
        f"{backend.start_summary(load_seconds)} · /help lists commands · Ctrl-C stops · "
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
    rows = dialogue.backend.usage_rows(f"{answers} · {tokens}{tau}", dialogue.settings)
    return lines + [labelled_line(label, text) for label, text in rows]


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


def labelled_line(name: str, text: str) -> str:
    """A label and its text."""
    return f"  {name:14}{text}"
