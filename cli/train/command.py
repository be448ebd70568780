"""`dflash train`: trains a drafter for a target from a file of prompts."""

import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import replace_json

from ..option_values import Origin, origin_of
from ..terminal.keys import Interrupt
from ..terminal.output import Output

if TYPE_CHECKING:
    from rich.progress import TaskID

    from dflash_mlx.train.run import Job
    from dflash_mlx.train.settings import (
        AnswersProgress,
        Event,
        Forecast,
        Measured,
        Prepared,
        StepDone,
        TapsProgress,
        TrainSettings,
    )


# The record of a training run

NOT_KEPT = {"folder", "resume", "forecast", "quiet", "plain"}
# Flags that change no step of the run.
MAY_CHANGE = {
    "answer_batch", "trust_remote_code", "eval_every", "save_every", "save_minutes",
    "cache_taps", "taps_folder", "dtype",
}  # fmt: skip
# Compared by their content, so that they may be moved: a file, a file, a folder or a Hub id.
FILES = ("prompts", "val", "model")
PATHS = ("prompts", "val", "answers", "taps_folder", "warm_start")


class Record:
    """The file run.json in the folder of a run."""

    def __init__(self, folder: Path):
        self.folder, self._file = folder, folder / "run.json"

    def values_to_resume(self, ctx: typer.Context) -> dict[str, Any]:
        """The values of all parameters: the run's own, and what was given now and may change.

        Raises UsageError, which names both values, if a flag was given that the run has otherwise;
        DFlashError without a run.
        """
        kept = self._read()["flags"]
        given = {
            name: value
            for name, value in flags_of(ctx.params).items()
            if origin_of(ctx, name) is Origin.FLAG
        }
        self._refuse(
            f"{flag(ctx, name)} {kept.get(name)}, not {value}"
            for name, value in given.items()
            if name not in (*MAY_CHANGE, *FILES) and kept.get(name) != value
        )
        return {**ctx.params, **kept, **given}

    def check_files(self, values: dict[str, Any], target: Path) -> None:
        """Raise UsageError for prompts or a target (its folder) that the run did not begin with."""
        read = self._read()
        now = digests(values, target)
        self._refuse(
            f"other contents of '{values[name]}'"
            if values[name] == read["flags"][name]
            else f"{name} {read['flags'][name]}, not {values[name]}"
            for name in FILES
            if now[name] != read["files"][name]
        )

    def write(self, values: dict[str, Any], target: Path) -> None:
        """Keep the flags and the digests of the files they name, and of the target's folder."""
        replace_json(self._file, {"flags": flags_of(values), "files": digests(values, target)})

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DFlashError(
                f"there is no run in '{self.folder}'.", hint="leave --resume out"
            ) from None
        except (OSError, ValueError):
            raise DFlashError(
                f"the file '{self._file}' cannot be read.", hint="give another --out"
            ) from None

    def _refuse(self, differences: Any) -> None:
        if text := "; ".join(differences):
            raise UsageError(
                f"the run in '{self.folder}' has {text}.",
                hint="leave that out: --resume goes on with the run's own; or give another --out",
            )


def flags_of(values: dict[str, Any]) -> dict[str, Any]:
    """The values to keep, with paths that hold from any folder, as JSON knows them."""
    kept = {name: value for name, value in values.items() if name not in NOT_KEPT}
    for name in PATHS:
        if kept[name] is not None:
            kept[name] = str(Path(kept[name]).expanduser().resolve())
    if kept["model"] is not None and Path(kept["model"]).expanduser().is_dir():
        kept["model"] = str(Path(kept["model"]).expanduser().resolve())
    return kept


def digests(values: dict[str, Any], target: Path) -> dict[str, str]:
    """A digest of each of FILES; empty for a file that was not given or is not there."""
    from dflash_mlx.train.answers import fingerprint

    found = {"model": fingerprint(target)}
    for name in ("prompts", "val"):
        path = values[name] and Path(values[name])
        there = path and path.is_file()
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if there else ""
    return found


def flag(ctx: typer.Context, name: str) -> str:
    """A parameter as it is written on the command line."""
    parameter = next(p for p in ctx.command.params if p.name == name)
    return max(parameter.opts, key=len)


# Shows a training run's events on stderr.


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
        self._seconds: float | None = None  # of a step
        self._tenths = 0  # of all taps
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

    def _forecast(self, event: "Forecast") -> None:
        parts = (event.memory, event.target, event.answers, event.steps, event.disk)
        memory, target, answers, steps, disk = (f"{part / 2**30:.1f} GiB" for part in parts)
        self._print(
            f"forecast: about {memory} of memory (target {target}, and answers {answers} or steps"
            f" {steps}) · at most {disk} of taps on disk"
        )

    def _answersprogress(self, event: "AnswersProgress") -> None:
        rate = event.tokens / max(event.seconds, 1e-9)
        note = f"{rate:,.0f} tok/s"
        self._show_bar("answers", event.done, event.total, note)
        left = (event.total - event.done) * event.seconds / max(1, event.done)
        self._print_every(
            event.done,
            max(1, event.total // 10),
            f"answers {event.done:,} of {event.total:,} · {event.tokens:,} tokens made · {note}"
            f" · {duration(left)} left",
        )

    def _tapsprogress(self, event: "TapsProgress") -> None:
        note = f"{event.done / max(event.seconds, 1e-9):,.0f} tok/s"
        self._show_bar("taps", event.done, event.total, note)
        left = (event.total - event.done) * event.seconds / event.done
        tenth = max(1, event.total // 10)
        if event.done // tenth < self._tenths:  # of the next sequences
            self._tenths = 0
        if event.done // tenth > self._tenths or event.done == event.total:
            self._tenths = event.done // tenth
            self._print_every(
                0,
                1,
                f"taps of {event.done:,} of {event.total:,} tokens · {note}"
                f" · {duration(left)} left",
            )

    def _prepared(self, event: "Prepared") -> None:
        taps = ", ".join(map(str, event.layer_ids))
        self._print(
            f"{event.sequences:,} prompts, {event.held_out:,} held out"
            + (f", {event.dropped:,} dropped (no room for an answer)" if event.dropped else "")
            + f" · drafter of {event.parameters:,} parameters · taps {taps} · mask token"
            f" {event.mask_token_id} · at most {event.cache_bytes >> 20:,} MiB of taps kept"
        )
        if not event.plots:
            self._print("τ is not drawn: plots need the package 'matplotlib'")
        if event.first_step:
            self._print(f"going on after step {event.first_step:,} of {event.steps:,}")

    def _stepdone(self, event: "StepDone") -> None:
        self._loss = event.loss if self._loss is None else 0.95 * self._loss + 0.05 * event.loss
        note = (
            f"loss {self._loss:.3f} · lr {event.rate:.1e} · "
            f"{event.blocks / event.seconds:,.0f} blocks/s{self._tau}"
        )
        self._show_bar("training", event.step, event.steps, note)
        # Steps differ in their blocks: the time of one is a running mean.
        was = self._seconds
        self._seconds = event.seconds if was is None else 0.9 * was + 0.1 * event.seconds
        left = duration(self._seconds * (event.steps - event.step))
        text = f"step {event.step:,} of {event.steps:,} · {note} · {left} left"
        self._print_every(event.step, 50, text)

    def _measured(self, event: "Measured") -> None:
        self._tau = f" · τ {event.tau:.2f}"
        self._print(
            f"step {event.step:,} · τ {event.tau:.2f} on held-out prompts"
            f" ({event.verifies:,} verifies, {event.seconds:.1f} s)"
        )
        kept = [100 * n / max(1, event.verifies) for n in event.accepted_by_position]
        self._print(f"  drafts kept by position, %: {' '.join(f'{share:.0f}' for share in kept)}")

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


def duration(seconds: float) -> str:
    """A time to come, in the unit that says it best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def train(
    ctx: typer.Context,
    *,
    prompts: Annotated[
        Path | None,
        typer.Argument(help="JSONL: strings, {'prompt': ...} or {'messages': [...]} a line."),
    ] = None,
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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, with its flags.")
    ] = False,
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
    dflash2: Annotated[
        bool, typer.Option("--dflash2", help="With DFlash 2's convolutions and selector.")
    ] = False,
    selector_rank: Annotated[int, typer.Option(help="Of the selector's codebooks.")] = 256,
    draft_vocab: Annotated[
        int | None, typer.Option(help="Draft only the answers' most frequent tokens [all].")
    ] = None,
    mask_token: Annotated[
        int | None, typer.Option(help="Id of the mask token [a free one].")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the prompts.")] = 6,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of --epochs.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences a step.")] = 8,
    anchors: Annotated[int, typer.Option(help="Most blocks of a sequence in a step.")] = 512,
    chunk: Annotated[int, typer.Option(help="Blocks in memory at once.")] = 32,
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
    save_minutes: Annotated[
        float, typer.Option(help="Longest time between two checkpoints.")
    ] = 10.0,
    taps_folder: Annotated[
        Path | None, typer.Option(help="Folder for the target's taps on disk [OUT/taps].")
    ] = None,
    cache_taps: Annotated[
        int, typer.Option(help="MiB of memory for taps that are read from disk.")
    ] = 2048,
    dtype: Annotated[str, typer.Option(help="Of the drafter: bfloat16 or float32.")] = "bfloat16",
    compute: Annotated[
        str,
        typer.Option(
            help="What steps compute in: float32 or bfloat16 (slow on a CPU). Weights stay float32."
        ),
    ] = "float32",
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Only say what memory and disk the run will need.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No colours and no moving lines.")] = False,
) -> None:
    """Train a DFlash drafter for a target.

    The target answers the prompts itself; the drafter learns to foresee those answers. --out then
    holds a drafter in Z Lab's format, for --draft.
    """
    from dflash_mlx.cpu.blas import use_all_cores

    use_all_cores()  # must run before MLX is imported
    from dflash_mlx.hub import resolve
    from dflash_mlx.pair import load_target
    from dflash_mlx.train.answers import AnswerSettings
    from dflash_mlx.train.data import read_prompts
    from dflash_mlx.train.run import Run, check_out

    record = Record(folder)
    values = record.values_to_resume(ctx) if resume else ctx.params
    job, settings = job_of(values, folder, resume=resume), train_settings(values)
    check_out(job)
    for file in filter(None, (job.prompts, job.val)):
        read_prompts(file)  # before anything is downloaded
    answer_settings = AnswerSettings(
        values["max_tokens"], values["temperature"], values["seed"], values["answer_batch"]
    )
    out = Output(quiet=quiet, plain=plain)
    kept = False
    with Interrupt(terminate=True) as interrupt, View(out) as view:

        def on_event(event: "Event") -> None:
            view.show(event)
            if type(event).__name__ in ("AnswersProgress", "TapsProgress"):
                interrupt.check()  # what was made so far is kept
            if type(event).__name__ == "Forecast" and forecast:
                raise typer.Exit

        try:
            names = resolve.pair_names(values["model"], None, no_draft=True)
            checkpoint = resolve.open_checkpoint(names.target, names.target_label)
            if resume:
                record.check_files(values, checkpoint.path)
            record.write(values, checkpoint.path)
            kept = True
            target, tokenizer = load_target(
                checkpoint, trust_remote_code=values["trust_remote_code"]
            )
            run = Run(target, tokenizer, job, settings, answer_settings, on_event)
            finished = run.train(lambda: interrupt.requested)
        except KeyboardInterrupt:
            finished = False
    if not finished:
        command = shlex.join(["dflash", "train", "--resume", "--out", str(folder)])
        out.info(f"stopped; `{command}` goes on from here" if kept else "stopped at the beginning")
        raise typer.Exit(interrupt.exit_code or 130)
    named = [] if values["model"] is None else ["--model", values["model"]]
    command = shlex.join(["dflash", "chat", *named, "--draft", str(folder)])
    out.note(f"the drafter is in {folder}; `{command}` uses it")


def job_of(values: dict[str, Any], folder: Path, *, resume: bool) -> "Job":
    """The run's input and output, of the values of the command's parameters."""
    from dflash_mlx.train.run import Job, has_checkpoints
    from dflash_mlx.train.settings import Shape

    if values["prompts"] is None:
        raise UsageError("there are no prompts to train on.", hint="give a file of prompts")
    taps = values["taps"]
    try:
        numbers = tuple(int(part) for part in taps.split(","))
    except ValueError:
        raise UsageError(f"--taps cannot be '{taps}'.", hint="give 5, or ids: 1,9,17") from None

    def path(name: str) -> Path | None:
        return None if values[name] is None else Path(values[name])

    return Job(
        prompts=Path(values["prompts"]),
        out=folder,
        val=path("val"),
        val_share=values["val_share"],
        answers=path("answers"),
        taps=path("taps_folder"),
        warm_start=path("warm_start"),
        mask_token=values["mask_token"],
        shape=Shape(
            layers=values["layers"],
            block_size=values["block_size"],
            taps=numbers if "," in taps else numbers[0],
            heads=values["heads"],
            kv_heads=values["kv_heads"],
            head_dim=values["head_dim"],
            intermediate_size=values["intermediate"],
            dflash2=values["dflash2"],
            selector_rank=values["selector_rank"],
            draft_vocab=values["draft_vocab"],
        ),
        resume=resume and has_checkpoints(folder),
    )


def train_settings(values: dict[str, Any]) -> "TrainSettings":
    """The run's hyper-parameters, of the values of the command's parameters."""
    from dflash_mlx.train.settings import TrainSettings

    same = (
        "epochs steps batch anchors chunk rate optimizer loss gamma max_length seed eval_every "
        "save_every save_minutes dtype compute"
    )
    return TrainSettings(**{n: values[n] for n in same.split()}, cache_mb=values["cache_taps"])
