"""`dflash train`: trains a drafter for a target from a file of prompts.

Knows flags and progress bars; `dflash_mlx.train` trains.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..terminal.interrupt import Interrupt
from ..terminal.output import Output

if TYPE_CHECKING:
    from rich.progress import TaskID

    from dflash_mlx.train.events import AnswersProgress, Event, Measured, Prepared, StepDone


def train(
    prompts: Annotated[
        Path, typer.Argument(help="JSONL: strings, {'prompt': ...} or {'messages': [...]} a line.")
    ],
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the drafter and its run.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Target: folder or Hub id.")
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code", help="Run the Python code that some tokenizers are made of."
        ),
    ] = False,
    val: Annotated[Path | None, typer.Option(help="JSONL of held-out prompts.")] = None,
    val_share: Annotated[float, typer.Option(help="Share held out without --val.")] = 0.02,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    warm_start: Annotated[
        Path | None, typer.Option(help="Drafter folder to start from, with its shape.")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="File of the target's answers [OUT/answers.jsonl].")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 1024,
    temperature: Annotated[float, typer.Option(help="Of the answers; 0 is greedy.")] = 0.0,
    answer_batch: Annotated[int, typer.Option(help="Answers made at once.")] = 64,
    layers: Annotated[
        int | None, typer.Option(help="Drafter layers [5, small targets fewer].")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Slots of a block, anchor included.")] = 16,
    taps: Annotated[
        str, typer.Option(help="How many target layers are read, or which: 1,9,17.")
    ] = "5",
    heads: Annotated[int | None, typer.Option(help="Attention heads [the target's].")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key and value heads [the target's].")
    ] = None,
    head_dim: Annotated[int | None, typer.Option(help="Size of a head [the target's].")] = None,
    intermediate: Annotated[int | None, typer.Option(help="MLP width [the target's].")] = None,
    mask_token: Annotated[
        int | None, typer.Option(help="Id of the mask token [a free one].")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the prompts.")] = 6,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of --epochs.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences a step.")] = 8,
    anchors: Annotated[int, typer.Option(help="Most blocks of a sequence in a step.")] = 512,
    chunk: Annotated[int, typer.Option(help="Blocks in memory at once.")] = 64,
    rate: Annotated[float, typer.Option("--lr", help="Peak learning rate.")] = 6e-4,
    optimizer: Annotated[str, typer.Option(help="muon (for the matrices) or adamw.")] = "muon",
    loss: Annotated[str, typer.Option(help="Slot weights: decay or dpace.")] = "decay",
    gamma: Annotated[
        float | None, typer.Option(help="Decay of the position weights [by block size].")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Longest sequence in tokens.")] = 3072,
    seed: Annotated[int, typer.Option(help="Of weights, order and anchors.")] = 0,
    eval_every: Annotated[int, typer.Option(help="Steps between two measurements of τ.")] = 200,
    save_every: Annotated[int, typer.Option(help="Steps between two checkpoints.")] = 200,
    cache_taps: Annotated[int, typer.Option(help="MiB of memory for the target's taps.")] = 2048,
    dtype: Annotated[str, typer.Option(help="Of the drafter: bfloat16 or float32.")] = "bfloat16",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No colours and no moving lines.")] = False,
) -> None:
    """Train a DFlash drafter for a target.

    The target answers the prompts itself; the drafter learns to foresee those answers. --out then
    holds a drafter in Z Lab's format, for --draft.
    """
    # Two streams keep two cores busy; more BLAS threads would compete for them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dflash_mlx.cpu import blas

    blas.use_openblas()
    from dflash_mlx.errors import UsageError
    from dflash_mlx.hub import resolve
    from dflash_mlx.target.target import Target
    from dflash_mlx.train.answers import AnswerSettings
    from dflash_mlx.train.run import Job, Run
    from dflash_mlx.train.settings import TrainSettings
    from dflash_mlx.train.shape import Shape

    try:
        numbers = tuple(int(part) for part in taps.split(","))
    except ValueError:
        raise UsageError(f"--taps cannot be '{taps}'.", hint="give 5, or ids: 1,9,17") from None
    settings = TrainSettings(
        epochs=epochs, steps=steps, batch=batch, anchors=anchors, chunk=chunk, rate=rate,
        optimizer=optimizer, loss=loss, gamma=gamma, max_length=max_length, seed=seed,
        eval_every=eval_every, save_every=save_every, cache_mb=cache_taps, dtype=dtype,
    )  # fmt: skip
    job = Job(
        prompts=prompts,
        out=folder,
        val=val,
        val_share=val_share,
        answers=answers,
        warm_start=warm_start,
        mask_token=mask_token,
        shape=Shape(
            layers=layers,
            block_size=block_size,
            taps=numbers if "," in taps else numbers[0],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=intermediate,
        ),
        resume=resume,
    )
    out = Output(quiet=quiet, plain=plain)
    started = False
    with Interrupt() as interrupt, View(out) as view:

        def on_event(event: "Event") -> None:
            view.show(event)
            if type(event).__name__ == "AnswersProgress":
                interrupt.check()  # the file has every answer so far

        try:
            path = resolve.fetch(resolve.pair_names(model, None, no_draft=True).target)
            target = Target.load(path, trust_remote_code=trust_remote_code)
            answer_settings = AnswerSettings(max_tokens, temperature, seed, answer_batch)
            run = Run(target, job, settings, answer_settings, on_event)
            started = True
            finished = run.train(lambda: interrupt.requested)
        except KeyboardInterrupt:
            finished = False
    if not finished:
        flag = " with --resume" if started else ""
        out.info(f"stopped; the same command{flag} goes on from here")
        raise typer.Exit(130)
    out.note(f"the drafter is in {folder}; `dflash chat --draft {folder}` uses it")


class View:
    """The run's progress on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, out: Output):
        from rich import progress

        self._out = out
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
            progress.TimeRemainingColumn(),
            console=out.console,
            disable=not out.stderr_live,
        )
        self._task: tuple[str, TaskID] | None = None
        self._loss: float | None = None
        self._tau = ""

    def __enter__(self) -> "View":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: "Event") -> None:
        """Show one event of the run."""
        handle = getattr(self, f"_{type(event).__name__.lower()}", None)
        if handle:
            handle(event)

    def _answersprogress(self, event: "AnswersProgress") -> None:
        rate = event.tokens / max(event.seconds, 1e-9)
        note = f"{rate:,.0f} tok/s"
        self._show_bar("answers", event.done, event.total, note)
        self._print_every(
            event.done,
            max(1, event.total // 10),
            f"answers {event.done:,} of {event.total:,} · {note}",
        )

    def _prepared(self, event: "Prepared") -> None:
        taps = ", ".join(map(str, event.layer_ids))
        self._print(
            f"{event.sequences:,} prompts, {event.held_out:,} held out"
            + (f", {event.dropped:,} dropped (no room for an answer)" if event.dropped else "")
            + f" · drafter of {event.parameters:,} parameters · taps {taps} · mask token"
            f" {event.mask_token_id} · at most {event.cache_bytes >> 20:,} MiB of taps kept"
        )
        if event.first_step:
            self._print(f"going on after step {event.first_step:,} of {event.steps:,}")

    def _stepdone(self, event: "StepDone") -> None:
        self._loss = event.loss if self._loss is None else 0.95 * self._loss + 0.05 * event.loss
        note = (
            f"loss {self._loss:.3f} · lr {event.rate:.1e} · "
            f"{event.blocks / event.seconds:,.0f} blocks/s{self._tau}"
        )
        self._show_bar("training", event.step, event.steps, note)
        self._print_every(event.step, 50, f"step {event.step:,} of {event.steps:,} · {note}")

    def _measured(self, event: "Measured") -> None:
        self._tau = f" · τ {event.tau:.2f}"
        self._print(
            f"step {event.step:,} · τ {event.tau:.2f} on held-out prompts"
            f" ({event.verifies:,} verifies, {event.seconds:.1f} s)"
        )

    def _show_bar(self, name: str, done: int, total: int, note: str) -> None:
        if self._task is None or self._task[0] != name:
            if self._task:
                self._progress.remove_task(self._task[1])
            self._task = name, self._progress.add_task(name, total=total, note="")
        self._progress.update(
            self._task[1], completed=done, total=total, note=self._out.ascii_fallback(note)
        )

    def _print_every(self, number: int, every: int, text: str) -> None:
        if not self._out.stderr_live and number % every == 0:
            self._print(text)

    def _print(self, text: str) -> None:
        if not self._out.quiet:
            self._out.info(text)
