"""`dflash generate --batch`: many prompts from a file, with the answers in another one.

The engine and the server are imported inside functions, because that takes a second.
"""

import asyncio
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.grammar import Grammar

from .backend.local import LocalBackend
from .loading import load_pair
from .options import Options, option
from .report import RunLog
from .resolve import fit
from .serve import served_name
from .terminal.output import Output, format_count
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx.files.line_file import LineFile
    from dflash_mlx.serve.batch import Answered, Defaults, Line
    from dflash_mlx.serve.protocol import Problem

LINE_SECONDS = 60.0  # between two lines of progress where no bar can be drawn
# Options that do not change a greedy answer, or one with a seed.
DRAFTING = ("mode", "block_size", "tree_budget", "chain_seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    batch: Annotated[
        Path | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help="Answer each line of this file: a text, or JSON (`dflash help generate`).",
            rich_help_panel="Prompt and answer",
        ),
    ] = None
    answers: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="File for the answers to --batch. Those that it has are not given again.",
            rich_help_panel="Output",
        ),
    ] = None
    max_sequences: Annotated[
        int,
        option(
            "--max-sequences",
            min=1,
            max=256,
            metavar="N",
            help="Answers at the same time, with --batch.",
            panel="Advanced",
        ),
    ] = 16


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
    from dflash_mlx.files.line_file import LineFile
    from dflash_mlx.serve.batch import read_answers, read_batch

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
        log.write("batch", **run.counts())
        if not out.quiet:
            out.info(f"  {run.summary()}", "dim")
    if run.interrupted:
        raise typer.Exit(130)
    run.check(path)


def defaults_of(options: Options, grammar: Grammar | None, *, raw: bool) -> "Defaults":
    """What the options say for all lines, and a digest of them."""
    from dflash_mlx.files.adapter import Adapter
    from dflash_mlx.serve.batch import Defaults

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


class BatchRun:
    """One run: writes the answers and counts them. interrupted: whether Ctrl-C ended it."""

    def __init__(self, file: "LineFile", before: "Answered", total: int, out: Output):
        self.interrupted = False
        self._file = file
        self._before = before
        self._total = total
        self._out = out
        self._written = 0  # in this run
        self._errors = before.errors
        self._tokens = 0
        self._seconds = 0.0
        self._failed: list[str] = []
        self._spinner: Spinner | None = None
        self._shown_at = time.monotonic()

    @property
    def done(self) -> int:
        return len(self._before.keys) + self._written

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

        from dflash_mlx.serve.batch import answer_lines, batch_runner
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
                self.interrupted = True
        self._seconds = time.perf_counter() - started_at
        out.warn(*backend.drafter_warning())
        backend.finish(out)

    def _keep(self, answer: dict[str, Any], tokens: int) -> None:
        self._file.append(answer, ascii_only=False)
        self._written += 1
        self._errors += "error" in answer
        self._tokens += tokens
        self._show_progress()

    def _fail(self, line: "Line", problem: "Problem") -> None:
        self._failed.append(f"'{line.key}': {problem.message}")

    def _show_progress(self) -> None:
        """Move the bar; where none can be drawn, print a line each minute."""
        out = self._out
        if self._spinner is not None:
            self._spinner.update(self.done, self._total)
        if out.stderr_live or out.quiet or time.monotonic() - self._shown_at < LINE_SECONDS:
            return
        self._shown_at = time.monotonic()
        out.info(f"  {self.done:,} of {self._total:,} prompts")

    def counts(self) -> dict[str, Any]:
        return {
            "prompts": self._total,
            "answered_before": len(self._before.keys),
            "answered": self._written,
            "errors": self._errors,
            "failed": len(self._failed),
            "tokens": self._tokens,
            "seconds": round(self._seconds, 3),
            "interrupted": self.interrupted,
        }

    def summary(self) -> str:
        total = format_count(self._total, "prompt", "prompts")
        parts = [f"{self.done - self._errors:,} of {total} answered"]
        if self._errors:
            parts.append(format_count(self._errors, "error", "errors"))
        if self._failed:
            parts.append(f"{len(self._failed):,} failed")
        if before := len(self._before.keys):
            parts.append(f"{before:,} before this run")
        if self._seconds:
            tokens = format_count(self._tokens, "token", "tokens")
            parts.append(f"{tokens} in {self._seconds:.1f} s")
            parts.append(f"{self._tokens / self._seconds:,.1f} tok/s")
        if self.interrupted:
            parts.append("stopped: the same command goes on from here")
        return " · ".join(parts)

    def check(self, path: Path) -> None:
        """Raise DFlashError if prompts have no answer."""
        if self._failed:
            raise DFlashError(
                f"{format_count(len(self._failed), 'prompt', 'prompts')} could not be answered; "
                f"the first is {self._failed[0]}",
                hint="the same command tries them again",
            )
        if self._errors:
            raise DFlashError(
                f"{format_count(self._errors, 'prompt has', 'prompts have')} an error.",
                hint=f"their lines in {path} say why",
            )
