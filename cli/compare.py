"""The same prompt answered twice, by DFlash and by plain mlx-lm decoding, held side by side.

Knows answers and their numbers; shows one small table.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .answer import Answer, answer
from .modes import plainly
from .output import Output
from .report import answer_part, timing
from .terminal.interrupt import Interrupt
from .view import JsonView

if TYPE_CHECKING:
    from dflash_mlx import Pair, SamplingParams, Session

WARM_UP = 16  # tokens, enough for a whole block
WARM_PROMPT = 64  # tokens of the prompt's end that the warm-up reads


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both answers. `sampled`: drawn at random, so that equal words are not to be expected."""

    dflash: Answer
    plain: Answer
    sampled: bool

    @property
    def speedup(self) -> float | None:
        """DFlash's decode rate over the plain one; None where an answer is too short for a rate."""
        ours, theirs = self.dflash.stats, self.plain.stats
        if not (ours.tokens_per_second and theirs.tokens_per_second):
            return None
        return ours.tokens_per_second / theirs.tokens_per_second

    @property
    def differs_from(self) -> int | None:
        """Number of the first token that differs, from 1; None when the answers are the same.

        A stop string ends DFlash's answer within a block, so tokens after the same text are not
        a difference.
        """
        a, b = self.dflash, self.plain
        for number, (one, other) in enumerate(zip(a.tokens, b.tokens, strict=False), 1):
            if one != other:
                return number
        same = (a.text, a.thinking) == (b.text, b.thinking)
        return None if same else min(len(a.tokens), len(b.tokens)) + 1


def warm_up(
    session: "Session", prompt: Any, options: dict[str, Any], out: Output, interrupt: Interrupt
) -> None:
    """Answer a few tokens both ways, so that what happens once at the start is not measured."""
    from dflash_mlx import Session

    told = {name: options[name] for name in ("think", "reasoning_effort")}
    tokens = session.tokens(prompt, **told, raw=options.get("raw", False))[-WARM_PROMPT:]
    short = {**options, "max_tokens": min(WARM_UP, options["max_tokens"]), "stop": ()}
    short |= dict.fromkeys(told)
    out.status("warming up")
    plain = Session(session.pair, mode="baseline")
    for warm, how in ((session, short), (plain, plainly(short))):
        for _ in warm.stream(tokens, **how):
            interrupt.check()
    out.erase()


def answer_plainly(
    pair: "Pair", prompt: Any, out: Output, interrupt: Interrupt, **options: Any
) -> Answer:
    """The other answer, of which only progress is shown."""
    from dflash_mlx import Session

    session = Session(pair, mode="baseline")
    return answer(
        session, prompt, JsonView(out, label="plain decoding · "), interrupt, **plainly(options)
    )


def show_table(
    both: Comparison, sampling: "SamplingParams", mode: str, shape: str, out: Output
) -> None:
    """Hold the two answers against each other on stderr, whoever reads it."""
    ours, theirs = both.dflash.stats, both.plain.stats
    ratio = "" if both.speedup is None else f"{both.speedup:.2f}×"
    how = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"
    out.tell(f"  {'':8}{'plain':>10}{mode:>10}", "dim")
    out.tell(f"  {'tok/s':8}{rate(both.plain):>10}{rate(both.dflash):>10}{ratio:>10}", "bold")
    out.tell(f"  {'tokens':8}{theirs.generated:>10,}{ours.generated:>10,}")
    out.tell(f"  {'τ':8}{'1.00':>10}{ours.acceptance_length:>10.2f}")
    out.tell(f"  {'accept':8}{'–':>10}{ours.acceptance_rate:>10.1%}")
    out.tell(f"  {'output':8}  {verdict(both)}")
    out.tell(f"  {'run':8}  1 warm-up · 1 run each · {how} · {shape}", "dim")


def rate(said: Answer) -> str:
    """Decode tokens a second, or a dash where the answer is too short to tell."""
    return f"{said.stats.tokens_per_second:,.1f}" if said.stats.tokens_per_second else "–"


def verdict(both: Comparison) -> str:
    """Whether both said the same."""
    if both.sampled:
        return "not compared: both are samples"
    if both.differs_from is None:
        return "identical"
    return f"differs from token {both.differs_from:,}"


def comparison_part(both: Comparison) -> dict[str, Any]:
    """What a comparison adds to the object of the DFlash answer."""
    return {
        "baseline": {**answer_part(both.plain), "timing": timing(both.plain)},
        "comparison": {
            "warm_up": 1,
            "speedup": None if both.speedup is None else round(both.speedup, 3),
            "identical": None if both.sampled else both.differs_from is None,
            "differs_from_token": None if both.sampled else both.differs_from,
        },
    }
