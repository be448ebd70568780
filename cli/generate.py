"""`dflash generate`: one prompt, one answer, with numbers if wanted, against plain decoding if
wanted. Does not know how text is shown or how tokens are made.
"""

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_mlx.errors import UsageError

from .answer import INTERRUPTED, Answer, answer
from .compare import Comparison, answer_plainly, comparison_part, show_table, warm_up
from .kernel_notes import kernel_warnings
from .loading import bundled_note, load_pair
from .modes import settle_models, shape_of
from .options import (
    ModelOptions,
    PromptOptions,
    SamplingOptions,
    ScreenOptions,
    grouped,
    option,
    source,
)
from .output import Output
from .question import messages, read_question
from .report import report
from .terminal.interrupt import Interrupt
from .thinking import settle
from .view import JsonView, LiveView, PlainView, stats_line

MAX_TOKENS = 512
LOW_TAU, LOW_VERIFIES = 1.5, 20  # drafting costs more than it saves below this, seen this often


@grouped
def generate(
    ctx: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - reads standard input."),
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the prompt here.")
    ] = None,
    models: ModelOptions,
    sampling: SamplingOptions,
    asked: PromptOptions,
    raw: Annotated[bool, option("--raw", help="Send the text as it is: no chat template.")] = False,
    screen: ScreenOptions,
    json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
    stats: Annotated[
        bool | None,
        option("--stats/--no-stats", help="Numbers on stderr. [on a terminal]"),
    ] = None,
    compare: Annotated[
        bool, option("--compare", help="Also decode plainly, and hold the two side by side.")
    ] = False,
) -> None:
    """Answer one prompt.

    The answer goes to stdout, everything else to stderr. Text on standard input follows the prompt
    after an empty line.
    """
    out = Output(quiet=screen.quiet, plain=screen.plain)
    question = messages(read_question(prompt, file), asked.system, raw=raw)
    params, most = sampling.params(), sampling.max_tokens or MAX_TOKENS
    models = settle_models(ctx, models)
    if compare and models.no_draft:
        left_out = "--mode baseline" if source(ctx, "no_draft") == "DEFAULT" else "--no-draft"
        raise UsageError(
            f"--compare needs a drafter, and {left_out} leaves it out.",
            hint="leave one of them out",
        )
    if note := bundled_note(models):
        if compare:
            out.tell(note, "dim")
        elif not json:
            out.note(note)
    pair, load_seconds = load_pair(models, out)
    out.warn(*kernel_warnings(pair.target.kernels))
    asked = settle(ctx, asked, pair.target.template, out, raw=raw)
    options: dict[str, Any] = {
        "sampling": params,
        "max_tokens": most,
        "stop": sampling.stop or (),
        "block_size": models.block_size,
        "accept": models.accept,
        "tree_budget": models.tree_budget,
        "think": asked.think,
        "reasoning_effort": asked.effort,
        "raw": raw,
    }
    shape = shape_of(pair, models.mode, models.block_size, models.tree_budget)
    view = make_view(out, json=json, thinking=asked.show_thinking)
    from dflash_mlx import Session

    plain = None
    with Interrupt() as interrupt:
        if compare:
            warm_up(Session(pair, mode=models.mode), question, options, out, interrupt)
        session = Session(pair, mode=models.mode)
        said = answer(session, question, view, interrupt, **options)
        if interrupt.twice:
            raise KeyboardInterrupt
        if compare and said.finish_reason != INTERRUPTED:
            plain = answer_plainly(pair, question, out, interrupt, **options)
    both = None
    if plain is not None and plain.finish_reason != INTERRUPTED:
        both = Comparison(said, plain, sampled=not params.greedy)
    if json:
        found = report(said, session, options, load_seconds)
        found |= comparison_part(both) if both else {}
        out.write(jsonlib.dumps(found, ensure_ascii=out.answers) + "\n")
    elif both:
        show_table(both, params, models.mode, shape, out)
    by_default = out.talks and not (screen.quiet or json or both)
    if by_default if stats is None else stats:
        out.tell(stats_line(said.stats, said.finish_reason, most), "dim")
    if not json and models.mode != "auto":  # which drafts less by itself
        warn_low(said, out)
    if INTERRUPTED in (said.finish_reason, plain and plain.finish_reason):
        raise typer.Exit(130)


def make_view(out: Output, *, json: bool, thinking: bool) -> PlainView:
    """The view for what is at the ends of stdout and stderr."""
    if json:
        return JsonView(out)
    return (LiveView if out.live else PlainView)(out, thinking=thinking)


def warn_low(said: Answer, out: Output) -> None:
    """Say so when drafting costs more than it saves."""
    tau, verifies = said.stats.acceptance_length, said.stats.verifies
    if verifies >= LOW_VERIFIES and tau < LOW_TAU:
        out.note(
            f"  low acceptance: τ {tau:.2f} over {verifies} blocks; drafting may cost more than it "
            "saves. Try --no-draft",
            "warning",
        )
