"""`dflash train`: trains a drafter for a target from a file of prompts."""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import replace_json
from dflash_mlx.train.settings import AnswerSettings, DrafterShape, TrainSettings, parse_taps

from .awake import awake
from .options import BUNDLED, Flags, ValueSource, option_groups, source_of
from .terminal.output import Output
from .terminal.signals import Interrupt

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from rich.progress import TaskID

    from dflash_mlx.models.target import Target
    from dflash_mlx.train.events import (
        AnswersProgress,
        Event,
        MemoryEstimate,
        Prepared,
        StepDone,
        TapsProgress,
        TauMeasured,
    )
    from dflash_mlx.train.run import TrainJob

GroupT = TypeVar("GroupT")


# The record of a training run

NOT_RECORDED = {"folder", "resume", "forecast", "quiet", "plain"}
# Flags that change no step of the run.
MAY_CHANGE = {
    "answer_batch", "trust_remote_code", "eval_every", "save_every", "save_minutes",
    "cache_taps", "taps_folder", "dtype",
}  # fmt: skip
# Compared by their content, so that they may be moved.
FILES = ("prompts", "val", "model")
PATHS = ("prompts", "val", "answers", "taps_folder", "warm_start")


class Record:
    """The file run.json in the folder of a run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = folder / "run.json"

    def values_to_resume(self, ctx: typer.Context) -> dict[str, Any]:
        """The values of all parameters: those of the run, and new flags that may change.

        UsageError, which names both values, for another flag whose value differs from the run's;
        DFlashError without a run, or for one of another version, which had other flags.
        """
        recorded = self._read()["flags"]
        if recorded.keys() != flags_of(ctx.params).keys():
            raise DFlashError(
                f"the file '{self._file}' is of another version of dflash, and is not read.",
                hint="give another --out; this run stays as it is",
            )
        flags = {
            name: value
            for name, value in flags_of(ctx.params).items()
            if source_of(ctx, name) is ValueSource.FLAG
        }
        self._refuse(
            f"{flag(ctx, name)} {recorded.get(name)}, not {value}"
            for name, value in flags.items()
            if name not in (*MAY_CHANGE, *FILES) and recorded.get(name) != value
        )
        return {**ctx.params, **recorded, **flags}

    def check_files(self, values: dict[str, Any], target: Path) -> None:
        """Raise UsageError for prompts or a target (its folder) that the run did not begin with."""
        recorded = self._read()
        current = file_digests(values, target)
        self._refuse(
            f"other contents of '{values[name]}'"
            if values[name] == recorded["flags"][name]
            else f"{name} {recorded['flags'][name]}, not {values[name]}"
            for name in FILES
            if current[name] != recorded["files"][name]
        )

    def write(self, values: dict[str, Any], target: Path) -> None:
        replace_json(self._file, {"flags": flags_of(values), "files": file_digests(values, target)})

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

    def _refuse(self, differences: Iterable[str]) -> None:
        if text := "; ".join(differences):
            raise UsageError(
                f"the run in '{self.folder}' has {text}.",
                hint="leave that out: --resume uses the run's own values; or give another --out",
            )


def flags_of(values: dict[str, Any]) -> dict[str, Any]:
    """The values to record, as JSON values; paths are absolute."""
    flags = {name: value for name, value in values.items() if name not in NOT_RECORDED}
    for name in PATHS:
        if flags[name] is not None:
            flags[name] = str(Path(flags[name]).expanduser().resolve())
    if flags["model"] is not None and Path(flags["model"]).expanduser().is_dir():
        flags["model"] = str(Path(flags["model"]).expanduser().resolve())
    return flags


def file_digests(values: dict[str, Any], target: Path) -> dict[str, str]:
    """A digest of each of FILES; empty for a file that is missing or was not given."""
    from dflash_mlx.train.answers import fingerprint

    digests = {"model": fingerprint(target)}
    for name in ("prompts", "val"):
        path = Path(values[name]) if values[name] is not None else None
        digests[name] = ""
        if path is not None and path.is_file():
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def flag(ctx: typer.Context, name: str) -> str:
    parameter = next(p for p in ctx.command.params if p.name == name)
    return max(parameter.opts, key=len)


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
        self._task: tuple[str, TaskID] | None = None
        self._loss: float | None = None
        self._seconds: float | None = None  # of a step
        self._tenths = 0  # of the answers or taps, at the last line
        self._tau = ""

    def __enter__(self) -> "View":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: "Event") -> None:
        """Show one event of the run; the method for it is named after its class."""
        show = getattr(self, f"_{type(event).__name__.lower()}", None)
        if show:
            show(event)

    def _memoryestimate(self, event: "MemoryEstimate") -> None:
        self._print(
            f"forecast: about {gib(event.memory)} of memory (target {gib(event.target)}, and"
            f" answers {gib(event.answers)} or steps {gib(event.steps)})"
            f" · at most {gib(event.disk)} of taps on disk"
        )

    def _answersprogress(self, event: "AnswersProgress") -> None:
        rate = event.tokens / max(event.seconds, 1e-9)
        note = f"{rate:,.0f} tok/s"
        self._show_bar("answers", event.done, event.total, note)
        if self._is_next_tenth(event.done, event.total):
            left = (event.total - event.done) * event.seconds / event.done
            self._print_if_not_live(
                f"answers {event.done:,} of {event.total:,} · {event.tokens:,} tokens made · {note}"
                f" · {duration(left)} left",
            )

    def _tapsprogress(self, event: "TapsProgress") -> None:
        note = f"{event.done / max(event.seconds, 1e-9):,.0f} tok/s"
        self._show_bar("taps", event.done, event.total, note)
        if self._is_next_tenth(event.done, event.total):
            left = (event.total - event.done) * event.seconds / event.done
            self._print_if_not_live(
                f"taps of {event.done:,} of {event.total:,} tokens · {note}"
                f" · {duration(left)} left",
            )

    def _is_next_tenth(self, done: int, total: int) -> bool:
        tenths = 10 * done // total
        if tenths <= self._tenths:
            return False
        self._tenths = tenths % 10  # the next work starts again at 0
        return True

    def _prepared(self, event: "Prepared") -> None:
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

    def _stepdone(self, event: "StepDone") -> None:
        self._loss = event.loss if self._loss is None else 0.95 * self._loss + 0.05 * event.loss
        note = (
            f"loss {self._loss:.3f} · lr {event.rate:.1e} · "
            f"{event.blocks / event.seconds:,.0f} blocks/s{self._tau}"
        )
        self._show_bar("training", event.step, event.steps, note)
        # Steps have different numbers of blocks, so their seconds are averaged.
        if self._seconds is None:
            self._seconds = event.seconds
        else:
            self._seconds = 0.9 * self._seconds + 0.1 * event.seconds
        left = duration(self._seconds * (event.steps - event.step))
        text = f"step {event.step:,} of {event.steps:,} · {note} · {left} left"
        if event.step % 50 == 0:
            self._print_if_not_live(text)

    def _taumeasured(self, event: "TauMeasured") -> None:
        self._tau = f" · τ {event.tau:.2f}"
        self._print(
            f"step {event.step:,} · τ {event.tau:.2f} on held-out prompts"
            f" ({event.verifies:,} verifies, {event.seconds:.1f} s)"
        )
        shares = [100 * n / max(1, event.verifies) for n in event.accepted_by_position]
        self._print(f"  drafts kept by position, %: {' '.join(f'{share:.0f}' for share in shares)}")

    def _show_bar(self, name: str, done: int, total: int, note: str) -> None:
        if self._task is None or self._task[0] != name:
            if self._task:
                self._progress.remove_task(self._task[1])
            self._task = name, self._progress.add_task(name, total=total, note="")
        self._progress.update(
            self._task[1], completed=done, total=total, note=self._out.ascii_fallback(note)
        )

    def _print_if_not_live(self, text: str) -> None:
        if not self._out.stderr_live:
            self._print(text)

    def _print(self, text: str) -> None:
        if not self._out.quiet:
            self._out.info(text)


def gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Target: a folder, a Hub id, or bundled. [bundled]",
            rich_help_panel="Data",
        ),
    ] = None
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Let a tokenizer run its own Python code.",
            rich_help_panel="Advanced",
        ),
    ] = False
    val: Annotated[
        Path | None, typer.Option(help="JSONL of held-out prompts.", rich_help_panel="Data")
    ] = None
    val_share: Annotated[
        float,
        typer.Option(help="Share of the prompts held out without --val.", rich_help_panel="Data"),
    ] = 0.02
    warm_start: Annotated[
        Path | None,
        typer.Option(help="Start from this drafter, with its shape.", rich_help_panel="Drafter"),
    ] = None
    answers: Annotated[
        Path | None,
        typer.Option(
            help="File with the target's answers. [OUT/answers.jsonl]", rich_help_panel="Data"
        ),
    ] = None
    taps_folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the target's hidden states. [OUT/taps]", rich_help_panel="Advanced"
        ),
    ] = None
    taps: Annotated[
        str,
        typer.Option(
            help="How many target layers the drafter reads, or which: 1,9,17.",
            rich_help_panel="Drafter",
        ),
    ] = "5"
    mask_token: Annotated[
        int | None,
        typer.Option(help="Id of the mask token. [a free one]", rich_help_panel="Advanced"),
    ] = None


TRAIN_FLAGS = Flags((FileOptions, AnswerSettings, DrafterShape, TrainSettings), variables=False)


@option_groups
def train(
    ctx: typer.Context,
    *,
    prompts: Annotated[
        Path | None,
        typer.Argument(help="JSONL: strings, {'prompt': ...} or {'messages': [...]} a line."),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for the drafter and its run.", rich_help_panel="Data"
        ),
    ],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in --out, with its flags.", rich_help_panel="Data"
        ),
    ] = False,
    options: Annotated[dict[str, Any], TRAIN_FLAGS],
    forecast: Annotated[
        bool,
        typer.Option(
            "--forecast",
            help="Only show the memory and disk that the run needs.",
            rich_help_panel="Output",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only errors.", rich_help_panel="Output")
    ] = False,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="No colours, no moving lines, only ASCII.", rich_help_panel="Output"
        ),
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
    if ctx.params["model"] == BUNDLED:
        ctx.params["model"] = None
    record = Record(folder)
    values = record.values_to_resume(ctx) if resume else ctx.params
    job = job_of(values, folder, resume=resume)
    settings = values_of(TrainSettings, values)
    answers = values_of(AnswerSettings, values)
    check_files(job)
    out = Output(quiet=quiet, plain=plain)
    started = False
    ctx.with_resource(awake())
    with Interrupt(terminate=True) as interrupt, View(out) as view:
        on_event = event_handler(view, interrupt, forecast_only=forecast)
        try:
            target, tokenizer = open_target(values, record, resume=resume)
            started = True
            finished = train_drafter(target, tokenizer, job, settings, answers, on_event, interrupt)
        except KeyboardInterrupt:
            finished = False
    if not finished:
        command = shlex.join(["dflash", "train", "--resume", "--out", str(folder)])
        out.info(
            f"stopped; `{command}` goes on from here" if started else "stopped before the start"
        )
        raise typer.Exit(interrupt.exit_code or 130)
    model = [] if values["model"] is None else ["--model", values["model"]]
    command = shlex.join(["dflash", "chat", *model, "--draft", str(folder)])
    out.note(f"the drafter is in {folder}; `{command}` uses it")


def values_of(group: type[GroupT], values: dict[str, Any]) -> GroupT:
    """A dataclass of declared options, from the values of the command's parameters."""
    names = [field.name for field in fields(group) if field.name in values]  # type: ignore
    return group(**{name: values[name] for name in names})


def job_of(values: dict[str, Any], folder: Path, *, resume: bool) -> "TrainJob":
    from dflash_mlx.train.run import TrainJob, has_checkpoints

    if values["prompts"] is None:
        raise UsageError("there are no prompts to train on.", hint="give a file of prompts")

    def path(name: str) -> Path | None:
        return None if values[name] is None else Path(values[name])

    return TrainJob(
        prompts=Path(values["prompts"]),
        out=folder,
        val=path("val"),
        val_share=values["val_share"],
        answers=path("answers"),
        taps=path("taps_folder"),
        warm_start=path("warm_start"),
        mask_token=values["mask_token"],
        shape=values_of(DrafterShape, {**values, "taps": parse_taps(values["taps"])}),
        resume=resume and has_checkpoints(folder),
    )


def check_files(job: "TrainJob") -> None:
    """Raise DFlashError for wrong files before anything is downloaded."""
    from dflash_mlx.train.data import read_prompts
    from dflash_mlx.train.run import check_out

    check_out(job)
    for file in filter(None, (job.prompts, job.val)):
        read_prompts(file)


def open_target(
    values: dict[str, Any], record: Record, *, resume: bool
) -> "tuple[Target, TokenizerWrapper]":
    """Download and load the target and its tokenizer; record the run's flags and files."""
    from dflash_mlx.kernels.dispatch import use_device
    from dflash_mlx.models.target import outline
    from dflash_mlx.pair import load_target
    from dflash_mlx.resolved_pair import LoadOptions, resolve_pair

    use_device()
    checkpoint = resolve_pair(values["model"], None, LoadOptions(no_draft=True)).target
    ability = outline(checkpoint).ability
    if not ability.hidden:
        raise DFlashError(
            f"'{checkpoint.name}' takes {ability.words}.",
            hint="drafters that are trained here read hidden states: take another target",
        )
    if resume:
        record.check_files(values, checkpoint.path)
    record.write(values, checkpoint.path)
    return load_target(checkpoint, trust_remote_code=values["trust_remote_code"])


def train_drafter(
    target: "Target",
    tokenizer: "TokenizerWrapper",
    job: "TrainJob",
    settings: TrainSettings,
    answers: AnswerSettings,
    on_event: "Callable[[Event], None]",
    interrupt: Interrupt,
) -> bool:
    """Train until the end or Ctrl-C; return whether the run reached its end."""
    from dflash_mlx.train.run import Run

    run = Run(target, tokenizer, job, settings, answers, on_event)
    return run.train(lambda: interrupt.requested)


def event_handler(
    view: View, interrupt: Interrupt, *, forecast_only: bool
) -> "Callable[[Event], None]":
    """Shows each event, and stops between answers or taps, where nothing made so far is lost."""
    from dflash_mlx.train.events import AnswersProgress, MemoryEstimate, TapsProgress

    def on_event(event: "Event") -> None:
        view.show(event)
        if isinstance(event, AnswersProgress | TapsProgress):
            interrupt.check()
        if isinstance(event, MemoryEstimate) and forecast_only:
            raise typer.Exit

    return on_event
