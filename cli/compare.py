"""Compares the answers of DFlash and of plain mlx-lm decoding to the same prompt.

Knows answers and their numbers; prints one small table.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .answer import Answer, answer_prompt
from .answer_view import JsonView
from .json_report import answer_json, timing_json
from .modes import baseline_options
from .terminal.interrupt import Interrupt
from .terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx import Pair, SamplingParams, Session

WARM_UP_TOKENS = 16  # enough for a whole block
WARM_UP_PROMPT_TOKENS = 64  # the warm-up reads this much of the end of the prompt


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt. `sampled`: temperature is above 0, so the texts need not match."""

    dflash: Answer
    plain: Answer
    sampled: bool

    @property
    def speedup(self) -> float | None:
        """DFlash's decode rate over the plain one; None when an answer is too short for a rate."""
        ours, theirs = self.dflash.stats, self.plain.stats
        if not (ours.tokens_per_second and theirs.tokens_per_second):
            return None
        return ours.tokens_per_second / theirs.tokens_per_second

    @property
    def differs_from(self) -> int | None:
        """Number of the first token that differs, counted from 1; None when the answers are equal.

        A stop string ends DFlash's answer inside a block, so extra tokens after the same text are
        not a difference.
        """
        ours, theirs = self.dflash, self.plain
        for number, (one, other) in enumerate(zip(ours.tokens, theirs.tokens, strict=False), 1):
            if one != other:
                return number
        same_text = (ours.text, ours.thinking) == (theirs.text, theirs.thinking)
        return None if same_text else min(len(ours.tokens), len(theirs.tokens)) + 1


def warm_up(
    session: "Session", prompt: Any, options: dict[str, Any], out: Output, interrupt: Interrupt
) -> None:
    """Answer a few tokens in both modes, so that one-time startup costs are not measured."""
    from dflash_mlx import Session

    thinking = {name: options[name] for name in ("think", "reasoning_effort")}
    tokens = session.tokens(prompt, **thinking, raw=options.get("raw", False))[
        -WARM_UP_PROMPT_TOKENS:
    ]
    short_options = {
        **options,
        "max_tokens": min(WARM_UP_TOKENS, options["max_tokens"]),
        "stop": (),
    }
    short_options |= dict.fromkeys(thinking)
    out.status("warming up")
    baseline = Session(session.pair, mode="baseline", shares=False)
    for warm_session, arguments in (
        (session, short_options),
        (baseline, baseline_options(short_options)),
    ):
        for _ in warm_session.stream(tokens, **arguments):
            interrupt.check()
    out.clear_status()


def baseline_answer(
    pair: "Pair", prompt: Any, out: Output, interrupt: Interrupt, **options: Any
) -> Answer:
    """Answer by plain decoding; shows only progress."""
    from dflash_mlx import Session

    session = Session(pair, mode="baseline", shares=False)
    return answer_prompt(
        session,
        prompt,
        JsonView(out, label="plain decoding · "),
        interrupt,
        **baseline_options(options),
    )


def show_comparison(
    comparison: Comparison, sampling: "SamplingParams", mode: str, drafting: str, out: Output
) -> None:
    """Print both answers' numbers side by side on stderr."""
    ours, theirs = comparison.dflash.stats, comparison.plain.stats
    ratio = "" if comparison.speedup is None else f"{comparison.speedup:.2f}×"
    sampler = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"
    out.info(f"  {'':8}{'plain':>10}{mode:>10}", "dim")
    rates = f"{format_rate(comparison.plain):>10}{format_rate(comparison.dflash):>10}"
    out.info(f"  {'tok/s':8}{rates}{ratio:>10}", "bold")
    out.info(f"  {'tokens':8}{theirs.generated:>10,}{ours.generated:>10,}")
    out.info(f"  {'τ':8}{'1.00':>10}{ours.acceptance_length:>10.2f}")
    out.info(f"  {'accept':8}{'–':>10}{ours.acceptance_rate:>10.1%}")
    out.info(f"  {'output':8}  {output_verdict(comparison)}")
    out.info(f"  {'run':8}  1 warm-up · 1 run each · {sampler} · {drafting}", "dim")


def format_rate(answer: Answer) -> str:
    """Decode rate in tokens a second; a dash when the answer is too short for a rate."""
    return f"{answer.stats.tokens_per_second:,.1f}" if answer.stats.tokens_per_second else "–"


def output_verdict(comparison: Comparison) -> str:
    """Whether both answers have the same tokens."""
    if comparison.sampled:
        return "not compared: both are samples"
    if comparison.differs_from is None:
        return "identical"
    return f"differs from token {comparison.differs_from:,}"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The fields that a comparison adds to the JSON object of the DFlash answer."""
    return {
        "baseline": {**answer_json(comparison.plain), "timing": timing_json(comparison.plain)},
        "comparison": {
            "warm_up": 1,
            "speedup": None if comparison.speedup is None else round(comparison.speedup, 3),
            "identical": None if comparison.sampled else comparison.differs_from is None,
            "differs_from_token": None if comparison.sampled else comparison.differs_from,
        },
    }
