"""`dflash train`: trains a drafter for a target from a file of prompts.

Knows flags and progress bars; `dflash_mlx.train` trains.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx.errors import UsageError

from ..terminal.interrupt import Interrupt
from ..terminal.output import Output
from .record import Record
from .view import View

if TYPE_CHECKING:
    from dflash_mlx.train.events import Event
    from dflash_mlx.train.job import Job
    from dflash_mlx.train.settings import TrainSettings


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
    from dflash_mlx.cpu.cores import use_all_cores

    use_all_cores()  # must run before MLX is imported
    from dflash_mlx.hub import resolve
    from dflash_mlx.target.target import Target
    from dflash_mlx.train.answers import AnswerSettings
    from dflash_mlx.train.data import read_prompts
    from dflash_mlx.train.job import check_out
    from dflash_mlx.train.run import Run

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
            path = resolve.fetch(resolve.pair_names(values["model"], None, no_draft=True).target)
            if resume:
                record.check_files(values, path)
            record.write(values, path)
            kept = True
            target = Target.load(path, trust_remote_code=values["trust_remote_code"])
            run = Run(target, job, settings, answer_settings, on_event)
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
    from dflash_mlx.train.job import Job, has_checkpoints
    from dflash_mlx.train.shape import Shape

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
