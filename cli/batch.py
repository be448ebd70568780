"""`dflash generate --batch`: many prompts from a file, with the answers in another one.

The engine and the server are imported inside functions, because that takes a second.
"""

import asyncio
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.grammar import Grammar

from .backend.local import LocalBackend
from .loading import load_pair
from .options import Options, flag
from .report import RunLog
from .resolve import fit
from .serve import served_name
from .terminal.output import Output, format_count
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx.batch_file import Answered, Defaults, Line
    from dflash_mlx.files.line_file import LineFile
    from dflash_mlx.serve.protocol import Problem

LINE_SECONDS = 60.0  # between two lines of progress where no bar can be drawn
# Options that do not change a greedy answer, or one with a seed.
DRAFTING = ("mode", "block_size", "tree_budget", "chain_seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    batch: Path | None = flag(
        None,
        "--batch FILE",
        "Answer each line of this file: a text, or JSON (`dflash help generate`).",
        "Prompt and answer",
        variable=False,
    )
    answers: Path | None = flag(
        None,
        "--out FILE",
        "File for the answers to --batch. Those that it has are not given again.",
        "Output",
        variable=False,
    )
    max_sequences: int = flag(
        16,
        "--max-sequences N",
        "Answers at the same time, with --batch.",
        "Advanced",
        min=1,
        max=256,
    )


def answer_batch(
    own: BatchOptions,
    options: Options,
    grammar: Grammar | None,
    *,
    raw: bool,
    log: RunLog,
    out: Output,
) -> None:
    """Answer the lines that have no answer yet; ends with one line of numbers.

    Raises UsageError for a wrong line, before a model is loaded, and DFlashError at the end if
    prompts have no answer.
    """
    from dflash_mlx.batch_file import read_answers, read_batch
    from dflash_mlx.files.line_file import LineFile

    assert own.batch is not None
    assert own.answers is not None
    path = own.answers.expanduser()
    if path.resolve() == own.batch.expanduser().resolve():
        raise UsageError("--batch and --out are the same file.", hint="give --out another one")
    if raw and options.prompt.system is not None:
        raise UsageError(
            "a system prompt cannot be sent with --raw.",
            hint="write it into the texts, or leave --raw out",
        )
    lines = read_batch(own.batch.expanduser(), defaults_of(options, grammar, raw=raw))
    with LineFile(path, "run") as file:
        answered = read_answers(file, path, lines)
        if answered.others:
            out.warn(
                f"{format_count(answered.others, 'answer', 'answers')} in {path} belong to no "
                f"line of {own.batch}"
            )
        run = BatchRun(file, answered, len(lines), out)
        left = [line for line in lines if line.key not in answered.keys]
        if left:
            run.answer(left, own, options, grammar, raw=raw, log=log)
        log.write("batch", **asdict(run.counts))
        if not out.quiet:
            out.info(f"  {run.counts.summary()}", "dim")
    if run.counts.interrupted:
        raise typer.Exit(130)
    run.check(path)


def defaults_of(options: Options, grammar: Grammar | None, *, raw: bool) -> "Defaults":
    """What the options say for all lines, and a digest of them."""
    from dflash_mlx.batch_file import Defaults
    from dflash_mlx.files.adapter import Adapter

    model = options.model
    generation = {
        name: value
        for name, value in asdict(options.generation).items()
        if name not in DRAFTING or options.generation.draws_drafts
    }
    settings = [generation, options.prompt.sampling_by, model.kv_bits, repr(grammar), raw]
    if model.adapter is not None:
        settings.append(Adapter.read(model.adapter).digest)
    return Defaults(
        served_name(model.model or "bundled", model.folders),
        json.dumps(settings, sort_keys=True, default=str),
        system=options.prompt.system,
        raw=raw,
    )


@dataclass(slots=True)
class Counts:
    """Numbers of prompts, and of what this run did. errors: answers that say why there is none."""

    prompts: int
    answered_before: int
    errors: int
    answered: int = 0
    failed: int = 0
    tokens: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def done(self) -> int:
        return self.answered_before + self.answered

    def summary(self) -> str:
        total = format_count(self.prompts, "prompt", "prompts")
        parts = [f"{self.done - self.errors:,} of {total} answered"]
        if self.errors:
            parts.append(format_count(self.errors, "error", "errors"))
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.answered_before:
            parts.append(f"{self.answered_before:,} before this run")
        if self.seconds:
            tokens = format_count(self.tokens, "token", "tokens")
            parts.append(f"{tokens} in {self.seconds:.1f} s")
            parts.append(f"{self.tokens / self.seconds:,.1f} tok/s")
        if self.interrupted:
            parts.append("stopped: the same command goes on from here")
        return " · ".join(parts)


class BatchRun:
    def __init__(self, file: "LineFile", before: "Answered", total: int, out: Output):
        self.counts = Counts(total, len(before.keys), before.errors)
        self._file = file
        self._out = out
        self._first_fault = ""
        self._spinner: Spinner | None = None
        self._shown_at = time.monotonic()

    def answer(
        self,
        lines: list["Line"],
        own: BatchOptions,
        options: Options,
        grammar: Grammar | None,
        *,
        raw: bool,
        log: RunLog,
    ) -> None:
        out = self._out
        pair, load_seconds = load_pair(options.model, out, options.cache)
        backend = LocalBackend(pair, drafting=options.generation.mode != "baseline")
        out.warn(*backend.info.warnings)
        asked = fit(options, backend.info, out, raw=raw).generation
        asked = replace(asked, max_tokens=asked.token_limit, grammar=grammar, raw=raw)
        with Spinner(out, "preparing the grammar"):
            backend.check(asked)
        log.loaded(backend, load_seconds, asked)

        from dflash_mlx.batch_file import answer_lines, batch_runner
        from dflash_mlx.serve.protocol import Settings

        settings = Settings(
            names=(served_name(backend.info.name, options.model.folders),),
            options=backend.info.used(asked),
            max_sequences=own.max_sequences,
        )
        runner = batch_runner(pair, settings)
        started_at = time.perf_counter()
        with Spinner(out, "answering", unit="prompts") as self._spinner:
            self._show_progress()
            try:
                asyncio.run(answer_lines(lines, runner, self._keep, self._fail))
            except KeyboardInterrupt:
                self.counts.interrupted = True
        self.counts.seconds = round(time.perf_counter() - started_at, 3)
        out.warn(*backend.drafter_warning())
        backend.finish(out)

    def _keep(self, answer: dict[str, Any], tokens: int) -> None:
        self._file.append(answer, ascii_only=False)
        self.counts.answered += 1
        self.counts.errors += "error" in answer
        self.counts.tokens += tokens
        self._show_progress()

    def _fail(self, line: "Line", problem: "Problem") -> None:
        self.counts.failed += 1
        self._first_fault = self._first_fault or f"'{line.key}': {problem.message}"

    def _show_progress(self) -> None:
        """Move the bar; where none can be drawn, print a line each minute."""
        out = self._out
        if self._spinner is not None:
            self._spinner.update(self.counts.done, self.counts.prompts)
        if out.stderr_live or out.quiet or time.monotonic() - self._shown_at < LINE_SECONDS:
            return
        self._shown_at = time.monotonic()
        out.info(f"  {self.counts.done:,} of {self.counts.prompts:,} prompts")

    def check(self, path: Path) -> None:
        if self.counts.failed:
            raise DFlashError(
                f"{format_count(self.counts.failed, 'prompt', 'prompts')} could not be answered; "
                f"the first is {self._first_fault}",
                hint="the same command tries them again",
            )
        if self.counts.errors:
            raise DFlashError(
                f"{format_count(self.counts.errors, 'prompt has', 'prompts have')} an error.",
                hint=f"their lines in {path} say why",
            )
