"""Reports on an answer: the object of `--json`, the comparison, the lines of `--log`."""

import json
import os
import platform
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from secrets import randbits
from statistics import stdev
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

import typer

from dflash_mlx import __version__
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.installation import versions
from dflash_mlx.options import TREE_BUDGET, GenerationOptions

from .answer import Answer, AnswerView, answer_prompt
from .backend.base import Backend, ModelInfo
from .backend.local import LocalBackend
from .options import flag
from .terminal.output import Output, stderr_columns
from .terminal.render import wrap_hanging
from .terminal.signals import Interrupt, LeaveChat

if TYPE_CHECKING:
    from dflash_mlx import Pair


def answer_report(
    answer: Answer, backend: Backend, options: GenerationOptions, load_seconds: float
) -> dict[str, Any]:
    """The object that `--json` prints; None for numbers that a server does not report."""
    return {
        **answer_json(answer),
        **({} if backend.info.local else {"tokens": None}),
        **backend.info.json,
        "sampling": sampling_json(backend.info, replace(options, accept=answer.stats.accept)),
        "timing": {"load_s": round(load_seconds, 4), **timing_json(answer)},
        **decoding_json(answer.stats, backend, backend.info.used(options)),
    }


def decoding_json(stats: Stats, backend: Backend, options: GenerationOptions) -> dict[str, Any]:
    """Mode, draft counts, versions; of a model on this machine the peak memory (GB), too."""
    speculation: dict[str, Any] = {
        "verifies": stats.verifies,
        **known(stats, "drafted", "accepted"),
        "mean_acceptance_length": round(stats.acceptance_length, 4),
        "acceptance_rate": round(stats.acceptance_rate, 4),
    }
    if not isinstance(backend, LocalBackend):
        if not stats.verifies:
            speculation |= {"verifies": None, "mean_acceptance_length": None}
        if not speculation["drafted"]:
            speculation["acceptance_rate"] = None
        return {
            "mode": "server",
            "speculation": speculation,
            "versions": {"dflash": __version__},
        }
    import mlx.core as mx

    drafting: dict[str, Any] = {"block_size": options.block_size or backend.info.block_size}
    if options.mode == "ddtree":
        drafting["tree_budget"] = options.tree_budget or TREE_BUDGET
    elif options.mode == "auto" and (policy := backend.session.policy):
        drafting["chosen"] = [
            {"rows": plan.rows, "drafted": plan.drafted, "tree": plan.tree, "rounds": count}
            for plan, count in policy.plans
        ]
        drafting["why"] = policy.reason
    by_position = {"accepted_by_position": stats.accepted_by_position}
    return {
        "mode": options.mode,
        "speculation": None
        if options.mode == "baseline"
        else {**drafting, **speculation, **by_position},
        "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 4),
        "versions": versions(),
    }


def known(stats: Stats, *names: str) -> dict[str, int | None]:
    """Counts by name; None for those that a server has not reported."""
    return {name: None if name in stats.unknown else getattr(stats, name) for name in names}


def sampling_json(info: ModelInfo, options: GenerationOptions) -> dict[str, Any]:
    """The sampling options and the limits of the answer, without the seed."""
    settings = asdict(options.sampling)
    del settings["seed"], settings["logit_bias"]
    return {
        **settings,
        **({"accept": options.accept} if info.local else {}),
        "max_tokens": options.max_tokens,
        "stop": list(options.stop),
    }


def answer_json(answer: Answer) -> dict[str, Any]:
    """Text, tokens, token counts, and the seed (None for a greedy answer)."""
    stats = answer.stats
    counts = known(stats, "prompt_tokens", "cached_tokens", "generated")
    return {
        "text": answer.text,
        "reasoning": answer.thinking,
        "finish_reason": answer.finish_reason,
        "tokens": answer.tokens,
        "usage": {
            "prompt": counts["prompt_tokens"],
            "cached": counts["cached_tokens"],
            "generated": counts["generated"],
        },
        "seed": stats.seed,
    }


def timing_json(answer: Answer) -> dict[str, float]:
    """Times in seconds, and the decode rate in tokens per second after the first token."""
    stats = answer.stats
    return {
        "prefill_s": round(stats.prefill_seconds, 4),
        "first_token_s": round(stats.first_token_seconds, 4),
        "decode_s": round(stats.decode_seconds, 4),
        "tok_s": round(stats.tokens_per_second, 2),
    }


# `--compare`: the answers of DFlash and of plain mlx-lm decoding to the same prompt

WARM_UP_TOKENS = 16  # enough for a whole block
WARM_UP_PROMPT_TOKENS = 64  # the warm-up reads this much of the end of the prompt


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt, with the same seed.

    comparable: whether exact decoding gives the same tokens; False if drafts are accepted at
    random.
    """

    dflash: Answer
    plain: Answer
    comparable: bool

    @classmethod
    def of(cls, dflash: Answer, plain: Answer, options: GenerationOptions) -> "Comparison":
        return cls(dflash, plain, options.sampling.greedy or not options.draws_drafts)

    @property
    def speedup(self) -> float | None:
        """DFlash's decode rate over the plain one; None when an answer is too short for a rate."""
        dflash = self.dflash.stats.tokens_per_second
        plain = self.plain.stats.tokens_per_second
        return dflash / plain if dflash and plain else None

    @property
    def spread(self) -> float | None:
        """How far `speedup` may be off, as a share of it; None if an answer is too short to tell.

        95 % by the seconds per token in the parts of both answers, part against part (the standard
        error of a ratio of sums). At least `RUN_SPREAD`, which no part of a single run can show.
        """
        if self.speedup is None:
            return None
        dflash = seconds_by_part(self.dflash)
        plain = seconds_by_part(self.plain)
        if not (dflash and plain):
            return None
        ratio = sum(plain) / sum(dflash)
        errors = [p - ratio * d for p, d in zip(plain, dflash, strict=True)]
        return max(RUN_SPREAD, STUDENT_T * stdev(errors) * PARTS**0.5 / sum(plain))

    @property
    def verdict(self) -> Literal["faster", "slower", "no difference"] | None:
        """What the two rates show; None if an answer is too short to tell."""
        if self.speedup is None or self.spread is None:
            return None
        if 1 / (1 + self.spread) < self.speedup < 1 + self.spread:
            return "no difference"
        return "faster" if self.speedup > 1 else "slower"

    @property
    def differs_from(self) -> int | None:
        """Number of the first token that differs, counted from 1; None when the answers are equal.

        A stop string ends DFlash's answer inside a block, so extra tokens after the same text are
        not a difference.
        """
        dflash = self.dflash
        plain = self.plain
        tokens = zip(dflash.tokens, plain.tokens, strict=False)
        for number, (dflash_token, plain_token) in enumerate(tokens, 1):
            if dflash_token != plain_token:
                return number
        same_text = (dflash.text, dflash.thinking) == (plain.text, plain.thinking)
        return None if same_text else min(len(dflash.tokens), len(plain.tokens)) + 1


PARTS = 8
STUDENT_T = 2.36  # 95 % of Student's t with 7 degrees of freedom
RUN_SPREAD = 0.05  # two runs of one program on a machine that does nothing else differ by this


def seconds_by_part(answer: Answer) -> list[float]:
    """The decode seconds of each eighth of the tokens; empty for fewer than 8 after the first.

    A pass that ends in the next part is divided evenly by its tokens.
    """
    import numpy as np

    if not answer.rounds:
        return []
    tokens = np.cumsum([tokens for _, tokens, *_ in answer.rounds])
    seconds = [seconds for seconds, *_ in answer.rounds]
    if tokens[-1] - tokens[0] < PARTS:
        return []
    ends = np.interp(np.linspace(tokens[0], tokens[-1], PARTS + 1), tokens, seconds)
    return np.diff(ends).tolist()


def warm_up(
    pair: "Pair", prompt: Any, options: GenerationOptions, out: Output, interrupt: Interrupt
) -> None:
    """Generate a few tokens in both modes, so that one-time startup costs are not measured."""
    from dflash_mlx import Session

    def fresh() -> Session:
        return Session(pair, mode="baseline", use_prefix_cache=False)

    tokens = fresh().tokens(
        prompt, think=options.think, reasoning_effort=options.reasoning_effort, raw=options.raw
    )[-WARM_UP_PROMPT_TOKENS:]
    limit = min(WARM_UP_TOKENS, options.token_limit)
    short = replace(options, max_tokens=limit, stop=(), think=None, reasoning_effort=None)
    out.status("warming up")
    for mode_options in (short, plain_options(short)):
        for _ in fresh().stream(tokens, mode_options):
            interrupt.check()
    out.clear_status()


def comparable_options(options: GenerationOptions) -> GenerationOptions:
    """With a seed, so that both answers draw the same random numbers."""
    sampling = options.sampling
    if sampling.greedy or sampling.seed is not None:
        return options
    return replace(options, sampling=replace(sampling, seed=randbits(31)))


def plain_options(options: GenerationOptions) -> GenerationOptions:
    return replace(options, mode="baseline", tree_budget=None)


def baseline_answer(
    pair: "Pair", prompt: Any, options: GenerationOptions, out: Output, interrupt: Interrupt
) -> Answer:
    view = AnswerView(out, stdout="nothing", label="plain decoding · ")
    backend = LocalBackend(pair, drafting=False, use_prefix_cache=False)
    return answer_prompt(backend, prompt, plain_options(options), view, interrupt)


def show_comparison(
    comparison: Comparison, info: ModelInfo, options: GenerationOptions, out: Output
) -> None:
    sampling = options.sampling
    dflash = comparison.dflash.stats
    plain = comparison.plain.stats
    ratio = "" if comparison.speedup is None else f"{comparison.speedup:.2f}×"
    spread = "" if comparison.spread is None else f" ± {comparison.spread:.0%}"
    sampler = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"
    run = f"1 warm-up · 1 run each · {sampler} · {info.drafting_summary(options)}"
    out.info(f"  {'':8}{'plain':>10}{options.mode:>10}", "dim")
    both = [stats.tokens_per_second for stats in (plain, dflash)]
    rates = "".join(f"{f'{rate:,.1f}' if rate else '–':>10}" for rate in both)
    out.info(f"  {'tok/s':8}{rates}{ratio:>10}{spread}", "bold")
    out.info(f"  {'tokens':8}{plain.generated:>10,}{dflash.generated:>10,}")
    out.info(f"  {'τ':8}{'1.00':>10}{dflash.acceptance_length:>10.2f}   tokens per pass")
    out.info(f"  {'accept':8}{'–':>10}{dflash.acceptance_rate:>10.1%}   of the checked drafts")
    out.info(f"  {'output':8}  {output_verdict(comparison)}")
    out.info(f"  {'run':8}  {run}", "dim")
    out.info(wrap_hanging(f"  {conclusion(comparison)}", stderr_columns()), "bold")


def conclusion(comparison: Comparison) -> str:
    dflash = comparison.dflash.stats
    plain = comparison.plain.stats
    rates = f"{dflash.tokens_per_second:,.1f} instead of {plain.tokens_per_second:,.1f}"
    numbers = f"{rates} tokens per second"
    if not comparison.comparable:
        answers = "Two random answers,"
    elif comparison.differs_from is None:
        answers = "The same answer, token for token,"
        numbers = f"{dflash.decode_seconds:.1f} s instead of {plain.decode_seconds:.1f} s"
    else:
        answers = f"The answers differ from token {comparison.differs_from:,};"
    speeds = {
        None: "too short to compare the speeds",
        "faster": f"{comparison.speedup or 0:.1f} times as fast: {numbers}",
        "slower": f"slower with drafts here: {numbers}",
        "no difference": "no difference in speed beyond the spread of "
        f"±{comparison.spread or 0:.0%}: {numbers}",
    }
    return f"{answers} {speeds[comparison.verdict]}."


def output_verdict(comparison: Comparison) -> str:
    if not comparison.comparable:
        return "not compared: both are random samples (--accept match compares them)"
    if comparison.differs_from is None:
        return "identical"
    return f"differs from token {comparison.differs_from:,}"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "baseline": {**answer_json(comparison.plain), "timing": timing_json(comparison.plain)},
        "comparison": {
            "warm_up": 1,
            "speedup": None if comparison.speedup is None else round(comparison.speedup, 3),
            "spread": None if comparison.spread is None else round(comparison.spread, 3),
            "verdict": comparison.verdict,
            "identical": comparison.differs_from is None if comparison.comparable else None,
            "differs_from_token": comparison.differs_from if comparison.comparable else None,
        },
    }


# `--log FILE`

TEXT_FIELDS = ("text", "reasoning", "tokens")  # fields of a report that hold the answer's text
QUOTED = re.compile(r"'[^'\n]*'")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    log: Path | None = flag(
        None,
        "--log FILE",
        "Append settings and timings to this file as JSON lines, for bug reports.",
        "Advanced",
    )
    log_text: bool = flag(
        False, "--log-text", "Include prompts and answers in the log.", "Advanced"
    )

    def open(self, command: str, warn: Callable[[str], None]) -> "RunLog":
        """The log of a command; without --log it writes nothing.

        DFlashError for a file that cannot be written. If writing fails later, `warn` gets a message
        and the run continues.
        """
        if self.log is None:
            return RunLog(None)
        path = self.log.expanduser()
        try:
            # Only its owner can read a new file.
            file = open(  # noqa: SIM115
                path, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)
            )
        except OSError as error:
            raise DFlashError(
                f"the log '{path}' cannot be written ({error.strerror}).",
                hint="give --log a file that you may write",
            ) from None
        log = RunLog(file, with_text=self.log_text, warn=warn)
        log.write(
            "start",
            time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            command=command,
            versions={**versions(), "python": platform.python_version()},
            machine=platform.platform(),
            processor=platform.processor() or platform.machine(),
        )
        return log


class RunLog:
    """The log of one run; a context manager that adds a last line with the exit code.

    typed: the user's last input, which is removed from error messages unless `with_text`.
    """

    def __init__(
        self,
        file: IO[str] | None,
        *,
        with_text: bool = False,
        warn: Callable[[str], None] = lambda text: None,
    ):
        self.typed = ""
        self._file = file
        self._with_text = with_text
        self._warn = warn
        self._started_at = time.perf_counter()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code: Any = 0
        if isinstance(error, LeaveChat | SystemExit):
            code = error.code
        elif isinstance(error, typer.Exit):
            code = error.exit_code
        elif isinstance(error, KeyboardInterrupt):
            code = 130
        elif isinstance(error, DFlashError):
            code = 2 if isinstance(error, UsageError) else 1
            self.error(error.message, error.hint)
        elif error is not None:
            code = 1
            frames = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(trace)]
            self.error(f"{type(error).__name__}: {error}", frames=frames)
        self.write("end", code=code)
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, kind: str, **fields: Any) -> None:
        """Add one line. If that fails, warn and write nothing more."""
        if self._file is None:
            return
        line = {"type": kind, "at": round(time.perf_counter() - self._started_at, 4), **fields}
        try:
            self._file.write(json.dumps(line, default=str) + "\n")
            self._file.flush()
        except OSError as error:
            self._file = None
            self._warn(f"the log ends here: it cannot be written ({error.strerror})")

    def loaded(self, backend: Backend, load_seconds: float, options: GenerationOptions) -> None:
        if self._file is None:
            return
        info = backend.info
        self.write(
            "pair",
            **info.json,
            load_s=round(load_seconds, 4),
            mode=info.used(options).mode if info.local else "server",
            **sampling_json(info, options),
        )

    def answered(
        self, answer: Answer, backend: Backend, options: GenerationOptions, prompt: Any
    ) -> None:
        """Add a line for an answer, complete or not; `prompt` is written only with --log-text."""
        if self._file is None:
            return
        report = answer_report(answer, backend, options, 0.0)
        del report["timing"]["load_s"]
        if not self._with_text:
            report = {name: value for name, value in report.items() if name not in TEXT_FIELDS}
        text = {"prompt": prompt} if self._with_text else {}
        rounds = [[round(seconds, 4), *counts] for seconds, *counts in answer.rounds]
        self.write("answer", **report, calls=len(answer.calls), rounds=rounds, **text)

    def called(self, name: str, state: str, seconds: float, **text: str) -> None:
        """Add a line for a tool call; its arguments and result (`text`) only with --log-text."""
        if not self._with_text:
            text = {}
        self.write("call", tool=name, state=state, seconds=round(seconds, 4), **text)

    def error(self, message: str, hint: str = "", **fields: Any) -> None:
        if self._with_text:
            self.write("error", message=message, hint=hint, **fields)
        else:  # a hint may list chats, which are named after prompts
            self.write("error", message=redact(message, self.typed), **fields)


def redact(message: str, typed: str) -> str:
    """A message without quoted parts and without typed words of four letters or more.

    A quoted path may be that of a chat, and chats are named after their first prompt.
    """
    message = QUOTED.sub("'…'", message)
    for word in sorted(set(re.findall(r"[^\s'\",;:()]{4,}", typed)), key=len, reverse=True):
        message = message.replace(word, "…")
    return message
