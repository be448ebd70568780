"""`dflash train`: trains a drafter for a target from a file of prompts."""

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import replace_json
from dflash_mlx.train.events import (
    AnswersProgress,
    Event,
    MemoryEstimate,
    Prepared,
    StepDone,
    TapsProgress,
    TauMeasured,
    gib,
)
from dflash_mlx.train.settings import (
    MAY_CHANGE,
    AnswerSettings,
    DrafterShape,
    TrainJob,
    TrainSettings,
)

from .awake import awake
from .config_file import flag_key
from .options import BUNDLED, Flags, option_groups
from .sources import ValueSource, source_of
from .terminal.output import Output
from .terminal.signals import Interrupt

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from dflash_mlx.models.target import Target

Values = dict[str, Any]  # all values of the command, by parameter name
GroupT = TypeVar("GroupT")

# The record of a training run

NOT_RECORDED = {"folder", "resume", "forecast", "quiet", "plain"}
# Compared by their content, so that they may be moved.
FILES = ("prompts", "val", "model")
PATHS = ("prompts", "val", "answers", "taps_folder", "warm_start")


class Record:
    """The file run.json in the folder of a run: its flags, and the digests of its files."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._file = folder / "run.json"

    def resumed(self, ctx: typer.Context, options: Values) -> Values:
        """The options of the run, with the new flags that may change.

        UsageError, which names both values, for another flag whose value differs from the run's;
        DFlashError without a run, or for one of another version, which had other flags.
        """
        recorded = self._read()["flags"]
        flags = flags_of(options)
        if recorded.keys() != flags.keys():
            raise DFlashError(
                f"the file '{self._file}' is of another version of dflash, and is not read.",
                hint="give another --out; this run stays as it is",
            )
        given = {n: v for n, v in flags.items() if source_of(ctx, n) is ValueSource.FLAG}
        keys = {parameter.name: flag_key(parameter) for parameter in ctx.command.params}
        self._refuse(
            f"--{keys[name]} {recorded[name]}, not {value}"
            for name, value in given.items()
            if name not in (*MAY_CHANGE, *FILES) and recorded[name] != value
        )
        return {**options, **recorded, **given}

    def check_files(self, options: Values, target: Path) -> None:
        """Raise UsageError for prompts or a target (its folder) that the run did not begin with."""
        recorded = self._read()
        current = file_digests(options, target)
        self._refuse(
            f"other contents of '{options[name]}'"
            if options[name] == recorded["flags"][name]
            else f"{name} {recorded['flags'][name]}, not {options[name]}"
            for name in FILES
            if current[name] != recorded["files"][name]
        )

    def write(self, options: Values, target: Path) -> None:
        files = file_digests(options, target)
        replace_json(self._file, {"flags": flags_of(options), "files": files})

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DFlashError(
                f"there is no run in '{self._folder}'.", hint="leave --resume out"
            ) from None
        except (OSError, ValueError):
            raise DFlashError(
                f"the file '{self._file}' cannot be read.", hint="give another --out"
            ) from None

    def _refuse(self, differences: Iterable[str]) -> None:
        if text := "; ".join(differences):
            raise UsageError(
                f"the run in '{self._folder}' has {text}.",
                hint="leave that out: --resume uses the run's own values; or give another --out",
            )


def flags_of(options: Values) -> dict[str, Any]:
    """The values to record, as JSON values; paths are absolute."""
    flags = {name: value for name, value in options.items() if name not in NOT_RECORDED}
    is_folder = flags["model"] is not None and Path(flags["model"]).expanduser().is_dir()
    for name in (*PATHS, *(["model"] if is_folder else [])):
        if flags[name] is not None:
            flags[name] = str(Path(flags[name]).expanduser().resolve())
    return flags


def file_digests(options: Values, target: Path) -> dict[str, str]:
    from dflash_mlx.train.answers import fingerprint

    digests = {"model": fingerprint(target)}
    for name in ("prompts", "val"):
        path = options[name] and Path(options[name])
        content = path.read_bytes() if path and path.is_file() else None
        digests[name] = "" if content is None else hashlib.sha256(content).hexdigest()
    return digests


# The view of a run


class View:
    """The run's progress on stderr: a bar on a terminal, occasional lines elsewhere."""

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
        self._loss: float | None = None
        self._seconds = 0.0  # of a step
        self._tenths = 0  # of the answers or taps, at the last line
        self._tau = ""

    def __enter__(self) -> "View":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        match event:
            case MemoryEstimate():
                self._print(
                    f"forecast: about {gib(event.memory)} of memory (target {gib(event.target)},"
                    f" and answers {gib(event.answers)} or steps {gib(event.steps)})"
                    f" · at most {gib(event.disk)} of taps on disk"
                )
            case AnswersProgress():
                text = f"answers {event.done:,} of {event.total:,} · {event.tokens:,} tokens made"
                self._show_part("answers", event, event.tokens, text)
            case TapsProgress():
                text = f"taps of {event.done:,} of {event.total:,} tokens"
                self._show_part("taps", event, event.done, text)
            case Prepared():
                self._show_prepared(event)
            case StepDone():
                self._show_step(event)
            case TauMeasured():
                self._show_tau(event)

    def _show_part(
        self, name: str, event: AnswersProgress | TapsProgress, tokens: int, text: str
    ) -> None:
        """Where no bar moves, a line for each tenth of the work before the first step."""
        note = f"{tokens / max(event.seconds, 1e-9):,.0f} tok/s"
        self._show_bar(name, event.done, event.total, note)
        tenths = 10 * event.done // event.total
        if tenths > self._tenths:
            self._tenths = tenths % 10  # the next work starts again at 0
            left = (event.total - event.done) * event.seconds / event.done
            self._print_line(f"{text} · {note}", left)

    def _show_prepared(self, event: Prepared) -> None:
        taps = ", ".join(map(str, event.layer_ids))
        mask = event.mask_token_id
        self._print(
            f"{event.sequences:,} prompts, {event.held_out:,} held out"
            + (f", {event.dropped:,} dropped (no room for an answer)" if event.dropped else "")
            + f" · drafter of {event.parameters:,} parameters · taps {taps}"
            + ("" if mask is None else f" · mask token {mask}")
            + f" · at most {event.cache_bytes >> 20:,} MiB of taps kept"
        )
        if not event.plots:
            self._print("τ is not drawn: plots need the package 'matplotlib'")
        if event.first_step:
            self._print(f"continuing after step {event.first_step:,} of {event.steps:,}")

    def _show_step(self, event: StepDone) -> None:
        self._loss = event.loss if self._loss is None else 0.95 * self._loss + 0.05 * event.loss
        # Steps have different numbers of blocks, so their seconds are averaged.
        self._seconds = 0.9 * (self._seconds or event.seconds) + 0.1 * event.seconds
        note = (
            f"loss {self._loss:.3f} · lr {event.rate:.1e} · "
            f"{event.blocks / event.seconds:,.0f} blocks/s{self._tau}"
        )
        self._show_bar("training", event.step, event.steps, note)
        if event.step % 50 == 0:
            left = self._seconds * (event.steps - event.step)
            self._print_line(f"step {event.step:,} of {event.steps:,} · {note}", left)

    def _show_tau(self, event: TauMeasured) -> None:
        self._tau = f" · τ {event.tau:.2f}"
        self._print(
            f"step {event.step:,} · τ {event.tau:.2f} on held-out prompts"
            f" ({event.verifies:,} verifies, {event.seconds:.1f} s)"
        )
        shares = [100 * n / max(1, event.verifies) for n in event.accepted_by_position]
        self._print(f"  drafts kept by position, %: {' '.join(f'{share:.0f}' for share in shares)}")

    def _show_bar(self, name: str, done: int, total: int, note: str) -> None:
        if [task.description for task in self._progress.tasks] != [name]:
            for task in self._progress.tasks:
                self._progress.remove_task(task.id)
            self._progress.add_task(name, total=total, note="")
        (task,) = self._progress.tasks
        note = self._out.ascii_fallback(note)
        self._progress.update(task.id, completed=done, total=total, note=note)

    def _print_line(self, text: str, seconds: float) -> None:
        """Where no bar moves, print what it would show, with the seconds that are left."""
        if not self._out.stderr_live:
            self._print(f"{text} · {duration(seconds)} left")

    def _print(self, text: str) -> None:
        if not self._out.quiet:
            self._out.info(text)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


data = partial(typer.Option, rich_help_panel="Data")
shown = partial(typer.Option, rich_help_panel="Output")


@option_groups
def train(
    ctx: typer.Context,
    *,
    prompts: Annotated[
        Path | None,
        typer.Argument(help="JSONL: strings, {'prompt': ...} or {'messages': [...]} a line."),
    ] = None,
    folder: Annotated[Path, data("--out", "-o", help="Folder for the drafter and its run.")],
    model: Annotated[
        str | None,
        data("--model", "-m", help="Target: a folder, a Hub id, or bundled. [bundled]"),
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Let a tokenizer run its own Python code.",
            rich_help_panel="Advanced",
        ),
    ] = False,
    options: Annotated[Values, Flags((TrainJob, AnswerSettings, TrainSettings), variables=False)],
    forecast: Annotated[
        bool, shown("--forecast", help="Only show the memory and disk that the run needs.")
    ] = False,
    quiet: Annotated[bool, shown("--quiet", "-q", help="Print only errors.")] = False,
    plain: Annotated[
        bool, shown("--plain", help="No colours, no moving lines, only ASCII.")
    ] = False,
) -> None:
    """Train a drafter for a target: DFlash, or an MTP head (--kind mtp).

    \b
      dflash train prompts.jsonl -m ./my-model --out trained
      dflash train --resume --out trained          continue after a stop
      dflash generate -m ./my-model -d trained "Hello"

    The target answers the prompts, and the drafter learns to predict these answers. A DFlash
    drafter is saved in Z Lab's format.
    """
    from dflash_mlx.cpu.blas import use_all_cores

    use_all_cores()  # must run before MLX is imported
    from dflash_mlx.train.run import Run

    record = Record(folder)
    if model == BUNDLED:
        options = {**options, "model": None}
    if options["resume"]:
        options = record.resumed(ctx, options)
    job = job_of(options, folder)
    settings = group_of(TrainSettings, options)
    answers = group_of(AnswerSettings, options)
    out = Output(quiet=quiet, plain=plain)
    finished = False
    started = False
    ctx.with_resource(awake())
    with Interrupt(terminate=True) as interrupt, View(out) as view:

        def on_event(event: Event) -> None:
            """Show an event; stop between answers or taps, where nothing made so far is lost."""
            view.show(event)
            if isinstance(event, AnswersProgress | TapsProgress):
                interrupt.check()
            if isinstance(event, MemoryEstimate) and forecast:
                raise typer.Exit

        try:
            target, tokenizer = open_target(options, record)
            started = True
            run = Run(target, tokenizer, job, settings, answers, on_event)
            finished = run.train(lambda: interrupt.requested)
        except KeyboardInterrupt:
            pass
    if not finished:
        command = shlex.join(["dflash", "train", "--resume", "--out", str(folder)])
        out.info(
            f"stopped; `{command}` goes on from here" if started else "stopped before the start"
        )
        raise typer.Exit(interrupt.exit_code or 130)
    model_flag = [] if options["model"] is None else ["--model", options["model"]]
    command = shlex.join(["dflash", "chat", *model_flag, "--draft", str(folder)])
    out.note(f"the drafter is in {folder}; `{command}` uses it")


def group_of(kind: type[GroupT], options: Values) -> GroupT:
    names = [member.name for member in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: options[name] for name in names if name in options})


def job_of(options: Values, folder: Path) -> TrainJob:
    """Raises DFlashError for wrong flags or files before anything is downloaded."""
    from dflash_mlx.train.checkpoint import list_checkpoints
    from dflash_mlx.train.data import read_prompts
    from dflash_mlx.train.run import check_out

    if options["prompts"] is None:
        raise UsageError("there are no prompts to train on.", hint="give a file of prompts")
    paths: dict[str, Any] = {name: options[name] and Path(options[name]) for name in PATHS}
    job = TrainJob(
        **paths,
        out=folder,
        val_share=options["val_share"],
        mask_token=options["mask_token"],
        shape=group_of(DrafterShape, options),
    )
    job = replace(job, resume=options["resume"] and bool(list_checkpoints(job.checkpoints)))
    check_out(job)
    for file in filter(None, (job.prompts, job.val)):
        read_prompts(file)
    return job


def open_target(options: Values, record: Record) -> "tuple[Target, TokenizerWrapper]":
    """Download and load the target and its tokenizer; record the run's flags and files."""
    from dflash_mlx.kernels.dispatch import use_device
    from dflash_mlx.models.target import outline
    from dflash_mlx.pair import load_target
    from dflash_mlx.resolved_pair import LoadOptions, resolve_pair

    use_device()
    checkpoint = resolve_pair(options["model"], None, LoadOptions(no_draft=True)).target
    ability = outline(checkpoint).ability
    if not ability.hidden:
        raise DFlashError(
            f"'{checkpoint.name}' takes {ability.words}.",
            hint="drafters that are trained here read hidden states: take another target",
        )
    if options["resume"]:
        record.check_files(options, checkpoint.path)
    record.write(options, checkpoint.path)
    return load_target(checkpoint, trust_remote_code=options["trust_remote_code"])
